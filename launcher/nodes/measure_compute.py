"""Measure the `compute:` of job.yaml, the cost of a step on a slot, on a host with the runtime's trials."""

from __future__ import annotations

import contextlib
import shlex

from holmes_core.errors import HolmesError, HostError
from holmes_core.records.access import Access
from holmes_core.records.job import Job
from holmes_core.remote.connect import connect
from holmes_core.remote.transport import last_lines
from launcher.nodes.ship import SHOWN_LINES
from launcher.prepare.bundle import RUNTIME_PACKAGE, Parcel, activated
from launcher.prepare.prepare import code_files, model_file, runtime_files
from launcher.prepare.user_variables import UserVariables

TIMEOUT_S = 900.0  # if the job compiles layers, this includes compiling them


def measure_compute(job: Job, host: str, access: Access, slots: int, variables: UserVariables) -> str:
    """Return the lines of YAML, measured on `host` in `slots` processes at once, or on that many GPUs.

    `variables` holds the model's file or code, if it is the user's own. Raises HostError with the host's message.
    """
    words = f"{access.python_word} -m {shlex.join(trial_words(job, slots))}"
    if access.container is not None:
        raise HostError(
            host,
            "files",
            "its Python is in a container, and Holmes cannot measure there",
            f"run this in the container, where Holmes is installed: `{words}`",
        )
    parcel = Parcel({**runtime_files(), **variables.files, **code_files(variables)})
    with contextlib.closing(connect(host, access)) as connection:
        unpacked = connection.run(parcel.unpack_command, parcel.archive, TIMEOUT_S)
        if unpacked.exit_code:
            said = " | ".join(last_lines(unpacked.stderr, SHOWN_LINES))
            raise HostError(host, "files", f"cannot unpack the runtime: {said}", "see that its home is writable")
        # torch warns if the machine's own address has no name
        command = f'cd "{parcel.folder}" && TORCH_CPP_LOG_LEVEL=ERROR exec {words}'
        done = connection.run(activated(access, command), b"", TIMEOUT_S)
    if done.exit_code:
        lines = last_lines(done.stderr, 1) or [f"exit code {done.exit_code}"]
        raise HostError(
            host, "files", f"nothing was measured: {lines[-1]}", f"see that {access.python} there has torch"
        )
    return done.stdout.decode(errors="replace")


def trial_words(job: Job, slots: int) -> list[str]:
    """Return the runtime's module that measures a layer of `job`, with options. An open micro-batch size is 1."""
    model = job.model
    keys = ("experts", *model.beyond_bundled) if model.experts is not None else model.beyond_bundled
    if keys:
        raise HolmesError(
            f"job: model.{keys[0]}: calibrate measures only the plain layers of the bundled runtime",
            f"leave `compute` out on GPUs, whose speeds are known; or calibrate the job without model.{keys[0]}",
        )
    whole = {"device": "cuda", "vocab-size": model.vocab_size, "job-layers": model.num_layers}
    sizes = {
        "family": model.family,
        "hidden-size": model.hidden_size,
        "num-heads": model.num_heads,
        "num-kv-heads": model.kv_heads,
        "ffn-hidden-size": model.ffn_size,
        "seq-length": model.seq_length,
        "micro-batch-size": job.parallel.micro_batch_size or 1,
        "precision": job.value_type,
        "slots": slots,
        **({"threads": job.threads_per_slot} if job.device == "cpu" else whole),
        **({"factory": model_file(job)} if model.factory is not None else {}),
    }
    options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    options += ["--compile" if job.compiles else "--no-compile", *(["--fp8"] if job.fp8 else [])]
    return [f"{RUNTIME_PACKAGE}.calibrate", *options]
