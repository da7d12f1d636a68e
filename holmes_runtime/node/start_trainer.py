"""`python -m holmes_runtime.node.start_trainer`: become the trainer's command as one rank of the plan.

torchrun starts it and numbers ranks host by host. A trainer computes its groups from its rank, so the command gets the
plan's number instead, which follows from host and local rank. It runs in the user's folder, because files written to
the node's folder, which is in a cache, would be lost. The hook of `holmes_runtime/hook` is first on its module path.
`python` in the command is the Python that runs this module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from holmes_runtime.config.model_shape import CODE_FOLDER
from holmes_runtime.config.node_config import HOST_VARIABLE, KEY_VARIABLE, TRAINER_VARIABLE
from holmes_runtime.config.trainer_config import HOOK_FOLDER, TrainerConfig, read_trainer_config
from holmes_runtime.node.near_cpus import stay_near_gpu
from holmes_runtime.node.process_tree import die_with_parent

NOT_RUN = 127  # as in shells
OURS = (KEY_VARIABLE, "HOLMES_LISTENER", "HOLMES_FAILURES_FILE")  # for torchrun and its agent


def trainer_environment(config: TrainerConfig, environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of the command. Raises KeyError if the plan has no rank for this host and local rank."""
    rank = config.rank_at(environ[HOST_VARIABLE], int(environ["LOCAL_RANK"]))
    environment = {name: value for name, value in environ.items() if name not in OURS}
    environment["RANK"] = str(rank)
    code = environ.get("PYTHONPATH")
    if (folder / CODE_FOLDER).is_dir():
        code = _joined(str(folder / CODE_FOLDER), code)
    environment["PYTHONPATH"] = _joined(str(folder / HOOK_FOLDER), code)
    environment["PATH"] = _joined(str(Path(sys.executable).parent), environ.get("PATH"))
    return environment


def _joined(first: str, rest: str | None) -> str:
    return f"{first}{os.pathsep}{rest}" if rest else first


def command_words(config: TrainerConfig, folder: Path) -> list[str]:
    """Return the words of the command. A word that names a file of the user's code becomes the file's path."""
    code = folder / CODE_FOLDER
    return [str(code / word) if word and (code / word).is_file() else word for word in config.command]


def main() -> None:
    """Become the command. Never return."""
    die_with_parent()
    stay_near_gpu(os.environ)
    file = Path(os.environ[TRAINER_VARIABLE])
    config = read_trainer_config(file)
    environment = trainer_environment(config, os.environ, file.parent)
    words = command_words(config, file.parent)
    try:
        os.chdir(Path(config.folder).expanduser())
        os.execvpe(words[0], words, environment)
    except OSError as error:
        print(
            f"holmes: cannot run {words[0]!r} in {config.folder}: {error.strerror} (trainer of job.yaml)",
            file=sys.stderr,
        )
        sys.exit(NOT_RUN)


if __name__ == "__main__":
    main()
