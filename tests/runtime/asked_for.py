"""The cases of a test module that are run, so that the worker of the module makes no other runs."""

from __future__ import annotations

from typing import Any

import pytest


def asked_for(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Return the parameters of each test of the fixture's module that this session runs."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    return [item.callspec.params for item in items if hasattr(item, "callspec")]
