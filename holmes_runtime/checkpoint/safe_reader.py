"""Reading a checkpoint's files without running what they say."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta


class SafeReader(FileSystemReader):
    """Torch's reader, but for a `.metadata` file that holds known records alone; torch would run what it says."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The checkpoint's metadata. Raises UnpicklingError for anything else in the file."""
        del args, kwargs
        with open(Path(self.path) / ".metadata", "rb") as file:
            metadata: Metadata = _MetadataUnpickler(file).load()
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    KNOWN = {
        "torch.distributed.checkpoint.metadata": {
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorStorageMetadata",
            "ChunkStorageMetadata",
            "TensorProperties",
            "_MEM_FORMAT_ENCODING",
        },
        "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
        "torch": {"Size", "float32", "strided"},
        "torch.serialization": {"_get_layout"},
        "pathlib": {"PosixPath"},
        "pathlib._local": {"PosixPath"},  # as Python 3.13 names it
    }

    def find_class(self, module_name: str, global_name: str) -> Any:
        """One of the records a metadata file is made of."""
        if global_name not in self.KNOWN.get(module_name, set()):
            raise pickle.UnpicklingError(f"{module_name}.{global_name} has no place in the metadata of a checkpoint")
        return super().find_class(module_name, global_name)
