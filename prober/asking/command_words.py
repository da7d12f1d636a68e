"""The words of a recorded command line from the tool's name on, without prompts and commands that run the tool."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class _Prefix:
    """A command that runs another command.

    `own` is the number of its own arguments, such as a host or a folder. `valued` are its options that take a value.
    With `labels` it prints a label and a colon before every line. With `dashes` the other command may follow `--`.
    """

    own: int = 0
    valued: tuple[str, ...] = ()
    labels: bool = False
    dashes: bool = False


_NAMESPACE = ("-n", "--namespace", "-c", "--container", "--context", "--kubeconfig")
_SRUN = (
    *("-N", "-n", "-w", "-p", "-A", "-t", "-c", "-J", "-x", "-q", "-C", "-D", "-G", "-o", "-e", "--nodes", "--ntasks"),
    *("--nodelist", "--partition", "--account", "--time", "--job-name", "--exclude", "--qos", "--gres", "--jobid"),
    *("--ntasks-per-node", "--gpus-per-node", "--container-image", "--container-name", "--container-mounts"),
)
_EXEC = ("-u", "--user", "-w", "--workdir", "-e", "--env", "--env-file", "--detach-keys")
_PREFIXES: dict[str, _Prefix] = {
    "sudo": _Prefix(valued=("-u", "-g", "-p", "-h", "-C", "-D", "-R", "-T")),
    "doas": _Prefix(valued=("-u",)),
    "env": _Prefix(valued=("-u", "-C")),
    "nice": _Prefix(valued=("-n",)),
    "ionice": _Prefix(valued=("-c", "-n", "-p")),
    "timeout": _Prefix(own=1, valued=("-k", "-s")),
    "stdbuf": _Prefix(valued=("-i", "-o", "-e")),
    "command": _Prefix(),
    "exec": _Prefix(),
    "nohup": _Prefix(),
    "time": _Prefix(),
    "busybox": _Prefix(),
    "watch": _Prefix(valued=("-n",)),
    "numactl": _Prefix(valued=("-N", "-m", "-C")),
    "taskset": _Prefix(own=1),
    "chroot": _Prefix(own=1),
    "nsenter": _Prefix(valued=("-t", "--target", "-S", "-G"), dashes=True),
    "unshare": _Prefix(dashes=True),
    "docker exec": _Prefix(own=1, valued=_EXEC),
    "podman exec": _Prefix(own=1, valued=_EXEC),
    "nerdctl exec": _Prefix(own=1, valued=_EXEC),
    "crictl exec": _Prefix(own=1),
    "apptainer exec": _Prefix(own=1, valued=("-B", "--bind", "--env", "--pwd")),
    "singularity exec": _Prefix(own=1, valued=("-B", "--bind", "--env", "--pwd")),
    "kubectl exec": _Prefix(own=1, valued=_NAMESPACE, dashes=True),
    "oc exec": _Prefix(own=1, valued=_NAMESPACE, dashes=True),
    "oc rsh": _Prefix(own=1, valued=_NAMESPACE),
    "kubectl debug": _Prefix(own=1, valued=(*_NAMESPACE, "--image"), dashes=True),
    "oc debug": _Prefix(own=1, valued=(*_NAMESPACE, "--image"), dashes=True),
    "ip netns exec": _Prefix(own=1),
    "ip vrf exec": _Prefix(own=1),
    "ssh": _Prefix(own=1, valued=tuple(f"-{letter}" for letter in "BbcDEeFIiJLlmOopQRSWw")),
    "srun": _Prefix(valued=_SRUN, dashes=True),
    "pdsh": _Prefix(valued=("-w", "-x", "-g", "-l", "-f", "-R", "-t", "-u", "-m"), labels=True),
    "clush": _Prefix(valued=("-w", "-x", "-g", "-X", "-l", "-f", "-t", "-u", "-o"), labels=True),
}
_GLOBAL_VALUED = (*_NAMESPACE, "--host", "-H")  # options of kubectl and docker before `exec`
PROMPT = r"[ \t]*(?:\[[\w.-]+@[^\]\n]*\]|[\w.+-]+@[\w.\\-]+(?::[^\s#$]*)?|(?:ba|z|da)?sh-[\d.]+)"
"""A regular expression for a shell's prompt before `#` or `$`: `root@node1:~`, `[me@node1 ~]`, `sh-5.1`."""
_PROMPT = re.compile(rf"\s*(?:\([\w.-]+\)\s*)?(?:{PROMPT})?\s*[#$]\s+", re.ASCII)  # a Python environment may precede
_SIMPLE = re.compile(r"""(?:[^'"|;&\\]|\\.|'[^']*'|"(?:\\.|[^"\\])*"|&(?!&))*""", re.DOTALL)
_REDIRECTION = re.compile(r"\s[12]?>(?:&[12]|\s*/\S+)")
_SHELL = re.compile(r"(?:ba|z|da|k)?sh|su")
_SETTING_UP = ("cd", "source", ".", "module", "ml", "set")


@dataclass(frozen=True)
class CommandWords:
    """The tool's name without a folder and its arguments. `labelled`: every line of its output begins with a label."""

    words: tuple[str, ...]
    labelled: bool = False


@functools.lru_cache(maxsize=4096)
def command_words(command: str) -> CommandWords:
    """Return the words of the first command in the line, without prompt, prefixes, setup commands and pipes.

    The result is cached, because every parser asks about every output, and hosts run the same commands.
    """
    command = _REDIRECTION.sub("", without_prompt(command))
    words = _split(command)
    if words and words[0] in _SETTING_UP and (rest := re.split(r";|&&", command, maxsplit=1)[1:]):
        return command_words(rest[0].strip())
    return _without_prefixes(words)


def without_prompt(line: str) -> str:
    """Return the line without a shell's prompt such as `root@node1:~# `, `[me@node1 ~]$ `, `sh-5.1# ` or `$ `."""
    match = _PROMPT.match(line)
    return line[match.end() :] if match and line[match.end() :].strip() else line


def _split(command: str) -> list[str]:
    """Return the words of the first command in the line."""
    match = _SIMPLE.match(command)
    first = match.group() if match and command[match.end() : match.end() + 1] not in ("'", '"', "\\") else command
    try:
        return shlex.split(first)
    except ValueError:  # an open quote
        return re.split(r"\||;|&&", command, maxsplit=1)[0].split()


def _without_prefixes(words: Sequence[str]) -> CommandWords:
    words, labelled = list(words), False
    while words:
        if re.match(r"[A-Za-z_]\w*=", words[0]):
            rest = words[1:]
        elif _SHELL.fullmatch(words[0].rpartition("/")[2]):
            rest = _after_dash_c(words)
        else:
            name, rest = _prefix(words)
            prefix = _PREFIXES.get(name)
            if prefix is None:
                break
            after = _after(prefix, rest)
            options = rest[: len(rest) - len(after)]
            labelled = labelled or prefix.labels or (name == "srun" and bool({"-l", "--label"} & set(options)))
            rest = after
        if not rest:
            break
        if len(rest) == 1 and re.search(r"\s", rest[0].strip()):  # `ssh HOST 'ibstat | head'`
            inner = command_words(rest[0].strip())
            return CommandWords(inner.words, labelled or inner.labelled)
        words = rest
    return CommandWords((PurePosixPath(words[0]).name, *words[1:]) if words else ("",), labelled)


def _prefix(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the prefix's name, such as `docker exec` for `/usr/bin/docker --tls exec`, and the words after it."""
    name, at = words[0].rpartition("/")[2], 1
    while name not in _PREFIXES and any(known.startswith(f"{name} ") for known in _PREFIXES) and at < len(words):
        if words[at].startswith("-"):
            at += 2 if words[at] in _GLOBAL_VALUED else 1
            continue
        name, at = f"{name} {words[at]}", at + 1
    return name, list(words[at:])


def _after(prefix: _Prefix, words: Sequence[str]) -> list[str]:
    """Return the words after a prefix's options and arguments."""
    rest, own = list(words), prefix.own
    if prefix.dashes and "--" in rest:
        return rest[rest.index("--") + 1 :]
    while rest and (own or rest[0].startswith("-")):
        if rest[0].startswith("-"):
            rest = rest[2 if rest[0] in prefix.valued else 1 :]
        else:
            rest, own = rest[1:], own - 1
    return rest


def _after_dash_c(words: Sequence[str]) -> list[str]:
    """Return the command after `sh -c` or `bash -lc`, if there is one."""
    at = next((at for at, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)), len(words))
    return list(words[at + 1 : at + 2])
