"""Gloo groups bound to an interface: torch's class, with a device of that interface where the hook names one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

THREADS = 2  # torch's own default for a Gloo group


def bind_gloo(gloo: Any, interface: Callable[[], str | None]) -> Any:
    """Return a subclass of `gloo` whose groups use the interface that `interface` returns, or torch's choice for None.

    torch tests with `isinstance` for Gloo groups, also for groups whose Python object is gone, so every Gloo group is
    an instance of the subclass. Options from a script keep all except their devices.
    """

    class OfAnyGloo(type(gloo)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, gloo)

    class ProcessGroupGloo(gloo, metaclass=OfAnyGloo):  # type: ignore[misc]
        def __init__(self, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> None:
            name = interface()
            if name is None:
                super().__init__(store, rank, size, *args, **kwargs)
                return
            given: Any = args[0] if args else kwargs.get("options", kwargs.get("timeout"))
            has_options = isinstance(given, gloo._Options)
            options = gloo._Options()
            options._devices = [_device(gloo, name)]
            options._threads = given._threads if has_options else THREADS
            timeout = given._timeout if has_options else given
            if timeout is not None:
                options._timeout = timeout
            super().__init__(store, rank, size, options)

    return ProcessGroupGloo


def _device(gloo: Any, interface: str) -> Any:
    lazily = os.environ.get("TORCH_GLOO_LAZY_INIT") == "1"
    try:
        return gloo.create_device(interface=interface, lazy_init=lazily)
    except RuntimeError as error:
        raise RuntimeError(f"holmes: a Gloo group cannot use the planned interface {interface!r}: {error}") from error
