"""Access: how to reach a host and its Python. What is left out of an address comes from the SSH configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from holmes_core.records.record import Record

TransportName = Literal["ssh", "local", "slurm"]
OneLine = Annotated[str, Field(pattern=r"^[^\n\r\x00]*$")]


class Container(Record):
    """The image in which a host's ranks run.

    Holmes adds what training needs: the host's network and shared memory, its GPUs, and the run's own folder.
    """

    engine: Literal["docker", "apptainer"]
    image: Annotated[str, Field(min_length=1)]
    options: tuple[str, ...] = ()  # for the engine, as they are, such as `--volume`, `/data:/data`


class Access(Record):
    """How to reach one host and its Python."""

    transport: TransportName = "ssh"
    address: str | None = None  # with Slurm its name for the node
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    user: str | None = None
    identity_file: str | None = None
    ssh_config: str | None = None  # None for ~/.ssh/config
    python: str = "python3"
    activate: OneLine | None = None  # a shell line before Python, `source /opt/conda/bin/activate train`
    container: Container | None = None
