"""Access: the connection to a host, its Python, and the settings sent to its ranks.

Parts of an address that are left out come from the SSH configuration.
"""

from __future__ import annotations

import shlex
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from holmes_core.records.record import Record
from holmes_core.records.ssh_names import SshHost, SshUser
from holmes_runtime.config.rooted_path import RootedPath, checked_rooted_path

TransportName = Literal["ssh", "local", "slurm"]
OneLine = Annotated[str, Field(pattern=r"^[^\n\r\x00]*$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


def _program(name: str) -> str:
    return checked_rooted_path(name) if "/" in name or not name else name


Program = Annotated[
    OneLine, AfterValidator(_program), Field(json_schema_extra={"format": "name of a program, or its whole path"})
]
"""A program's name, found by PATH, or its whole path."""


class Container(Record):
    """The image in which a host's ranks run.

    Holmes adds what training needs: the host's network and shared memory, its GPUs, and the run's own folder.
    """

    engine: Literal["docker", "apptainer"]
    """Program that runs the image. Example: docker"""
    image: Annotated[str, Field(min_length=1)]
    """Image, as the engine names it. Example: nvcr.io/nvidia/pytorch:25.06-py3"""
    options: tuple[str, ...] = ()
    """Words passed to the engine unchanged. Example: ["--volume", "/data:/data"]"""


class Access(Record):
    """The connection to one host, and its Python."""

    transport: TransportName = "ssh"
    address: SshHost | None = None  # with Slurm its name for the node
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    user: SshUser | None = None
    identity_file: str | None = None
    ssh_config: str | None = None  # None for ~/.ssh/config
    python: Program = "python3"
    activate: OneLine | None = None  # a shell line before Python, `source /opt/conda/bin/activate train`
    container: Container | None = None

    @property
    def python_in_words(self) -> str:
        """The host's Python, with its shell line and container, for messages."""
        after = f" after `{self.activate}`" if self.activate else ""
        inside = f" in {self.container.engine} image {self.container.image}" if self.container else ""
        return f"`{self.python}`{after}{inside}"

    @property
    def python_word(self) -> str:
        """The Python as a word of a shell command, in which the host's shell replaces `~` by its home folder."""
        is_at_home = self.python.startswith("~/")
        return f'"$HOME"/{shlex.quote(self.python[2:])}' if is_at_home else shlex.quote(self.python)


class LaunchSettings(Record):
    """Variables, secrets and code that ranks get in addition to the plan, and commands for events of the run.

    Nothing of the launching shell reaches the ranks unless it is named here.
    """

    environment: dict[VariableName, OneLine | None] = {}
    """Variables; one without a value gets it from the shell that runs `holmes launch`.
    Example: {NCCL_DEBUG: WARN, WANDB_MODE: null}"""
    secrets: dict[VariableName, RootedPath] = {}
    """Variables whose value is the text of this file on the controller. It goes into a private file on each node,
    never onto a command line or into the dry run. Example: {HF_TOKEN: ~/hf_token}"""
    code: OneLine | None = None
    """Folder of `model.factory` and of the modules it imports, or of the files that `trainer.command` names, relative
    to job.yaml. It is sent to every host.
    Names that begin with a dot, `__pycache__`, virtual environments and run folders are left out. Example: src"""
    on_end: tuple[OneLine, ...] = ()
    """Command, word by word, that runs on the controller when the run has ended, with success or without. It gets the
    outcome as JSON on its standard input. No shell reads the words. The run does not wait for the command, which is
    stopped after a minute. The program is found by PATH, or named by its whole path.
    Example: [curl, --json, "@-", "https://chat.example/hook"]"""
    on_verdict: tuple[OneLine, ...] = ()
    """Command that runs in the same way whenever hosts, links or edges are found slow or were adapted. It is left out
    while an earlier one still runs.
    Example: [logger, -t, holmes]"""

    @model_validator(mode="after")
    def _names_programs(self) -> LaunchSettings:
        for name, words in (("on_end", self.on_end), ("on_verdict", self.on_verdict)):
            program = words[0] if words else "/"
            if not program or ("/" in program and not program.startswith("/")):
                raise ValueError(f"{name}: {program!r} is neither a program's name nor an absolute path")
        return self

    @model_validator(mode="after")
    def _leaves_the_network_alone(self) -> LaunchSettings:
        for name in (*self.environment, *self.secrets):
            if name == "NCCL_NET":
                raise ValueError("NCCL_NET would override the network of every process group of the plan")
            if name in self.environment and name in self.secrets:
                raise ValueError(f"{name} is both in environment and in secrets")
        return self
