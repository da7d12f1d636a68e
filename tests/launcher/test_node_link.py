"""The way back to an agent whose connection broke off, on processes of this machine."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest

from holmes_core.records.access import Access
from launcher.nodes.node_link import LinkClosed, NodeLink, NodeMessage
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.user_variables import UserVariables
from tests.launcher.plans import cpu_plan, with_access


def test_an_agent_that_has_removed_its_folder_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not: a connection that breaks off again and again, until the host seems silent."""
    monkeypatch.setenv("HOME", str(tmp_path))
    plan = with_access(cpu_plan(), Access(transport="local", python="/nowhere/python3"))
    heard = queue.Queue[NodeMessage]()
    bundle = prepare(plan, Attempt("20260101-000000-abcd"), UserVariables({}, {}))[0]
    link = NodeLink(bundle, heard, detached=False)
    link.follow(messages_seen=3)
    last = heard.get(timeout=10.0).message
    link.close()
    assert isinstance(last, LinkClosed)
    assert last.agent_ended
    assert link.ended
