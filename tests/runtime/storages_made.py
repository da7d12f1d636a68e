"""The memory that operators fill and something still holds: what a forward keeps for its backward."""

from __future__ import annotations

import gc
from typing import Any

from torch import Tensor, is_tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class StoragesMade(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every storage that an operator has made meanwhile."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._nbytes: dict[StorageWeakRef, int] = {}

    def __enter__(self) -> StoragesMade:
        gc.collect(0)  # leaves all that was there before out of the search for garbage
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {_reference(each) for each in tree_leaves((args, kwargs)) if is_tensor(each)}
        for each in tree_leaves(result):
            if is_tensor(each) and _reference(each) not in known:
                self._nbytes[_reference(each)] = each.untyped_storage().nbytes()
        return result

    def alive_bytes(self) -> int:
        """Bytes of those that something still holds, other than garbage that refers to itself."""
        gc.collect(0)
        alive = (storage for storage in self._nbytes if not storage.expired())  # type: ignore[no-untyped-call]
        return sum(map(self._nbytes.__getitem__, alive))


def _reference(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
