"""The `holmes` command, and `python -m holmes` for where it is not on the path."""

from holmes_cli.app import main

if __name__ == "__main__":
    main()
