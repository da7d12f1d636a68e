"""A path that means the same wherever a command starts: absolute, or in the home folder of the user who reads it."""

from __future__ import annotations

import posixpath
from itertools import pairwise
from typing import Annotated, Any

CACHE_PARTS = (".cache", "holmes")  # in the home folder: what a run keeps on a host until it ends


def checked_rooted_path(path: str) -> str:
    """Return `path` unchanged.

    Raises:
        ValueError: It is neither absolute nor below `~/`, has a line break, or lies in Holmes's own cache.
    """
    if not path.startswith(("/", "~/")) or any(character in path for character in "\n\r\0"):
        raise ValueError("not an absolute path: begin it with / or, for the user's home folder, with ~/")
    parts = posixpath.normpath(path).split("/")
    if CACHE_PARTS in pairwise(parts):
        raise ValueError("in Holmes's own cache, which is removed when a run ends: name another folder")
    return path


class _Rooted:
    """The check of a path that pydantic reads from a file. Nodes get paths that were already checked."""

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> dict[str, Any]:
        check = {"type": "no-info", "function": checked_rooted_path}
        return {"type": "function-after", "function": check, "schema": handler(source)}

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), "format": "path that begins with / or ~/"}


RootedPath = Annotated[str, _Rooted()]
