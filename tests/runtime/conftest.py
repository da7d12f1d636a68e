"""What several tests of the runtime need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def lone_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """torch.distributed with this process as its only rank."""
    import torch.distributed as dist

    store = tmp_path_factory.mktemp("store") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
