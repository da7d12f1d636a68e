"""The command line: Typer declares it, Rich draws it; nothing below knows about terminals."""

VERSION = "0.1.0"
