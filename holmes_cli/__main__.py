"""`python -m holmes_cli`, for where the console script is not on the path."""

from holmes_cli.app import main

main()
