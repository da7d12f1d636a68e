"""The commands `holmes` and `holmes-train`, and `python -m holmes_train` for where neither is on the path."""

from typing import NoReturn

from holmes_cli import app
from holmes_cli.other_command import mention_other_command


def main() -> NoReturn:
    """Entry point of both commands."""
    mention_other_command()
    app.main()


if __name__ == "__main__":
    main()
