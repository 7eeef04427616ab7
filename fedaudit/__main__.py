"""`python -m fedaudit` is the command line."""

from fedaudit.cli import main

main()
