"""Names of hosts and users that `ssh` accepts on its command line and in the commands of its configuration.

A `Match exec` or a ProxyCommand may pass them to a shell. Source: OpenSSH, ssh.c, valid_hostname and valid_ruser;
checked with 9.2p1-2+deb12u10.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

MAX_SHOWN = 60
_NOT_IN_HOSTS = set("'`\"$\\;&<>|(){},")
_NOT_IN_USERS = set("'`\";&<>|(){}")
_BAD_END_OR_OPTION = re.compile(r"\\\Z| -")


def checked_ssh_host(name: str) -> str:
    """Return the name or address of a host.

    Raises:
        ValueError: ssh would not accept it.
    """
    for letter in name:
        if letter in _NOT_IN_HOSTS or letter.isspace() or not letter.isprintable():
            raise ValueError(f"{name[:MAX_SHOWN]!r} is not a valid host name or address: {letter!r} cannot be in one")
    return _not_an_option(name, "host name or address")


def checked_ssh_user(name: str) -> str:
    """Return the name of a user to log in as.

    Raises:
        ValueError: ssh would not accept it.
    """
    for letter in name:
        if letter in _NOT_IN_USERS or not letter.isprintable():
            raise ValueError(f"{name[:MAX_SHOWN]!r} is not a valid user name: {letter!r} cannot be in one")
    if _BAD_END_OR_OPTION.search(name):
        raise ValueError(f"{name[:MAX_SHOWN]!r} is not a valid user name: it ends in `\\`, or has a `-` after a blank")
    return _not_an_option(name, "user name")


def _not_an_option(name: str, what: str) -> str:
    if name.startswith("-"):
        raise ValueError(f"{name[:MAX_SHOWN]!r} is not a valid {what}: it begins with `-`, like an option")
    return name


SshHost = Annotated[
    str, AfterValidator(checked_ssh_host), Field(json_schema_extra={"format": "name or address of a host"})
]
SshUser = Annotated[str, AfterValidator(checked_ssh_user), Field(json_schema_extra={"format": "name of a user"})]
