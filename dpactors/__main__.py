"""``python -m dpactors`` is the command line."""

from dpactors.cli import main

main()
