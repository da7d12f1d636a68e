"""A watcher that hooks torch's module of process groups at its import, before any other code uses it.

It runs at the start of every Python process of a rank, so it imports no torch and nothing slow.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

GROUPS_MODULE = "torch.distributed.distributed_c10d"


def watch_import() -> None:
    """Hook torch's module of process groups as soon as it is imported."""
    sys.meta_path.insert(0, _Watcher())


class _Watcher(MetaPathFinder):
    """A finder of that one module. It asks the other finders and wraps the loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec; None for every other module."""
        if fullname != GROUPS_MODULE:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _HookingLoader(spec.loader)
                return spec
        return None


class _HookingLoader(Loader):
    """A loader that runs the module's own loader and then hooks the module."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the module that the own loader makes."""
        made: ModuleType | None = self._own.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, and hook it."""
        self._own.exec_module(module)
        from holmes_runtime.hook.group_hook import hook_groups

        hook_groups(module)
