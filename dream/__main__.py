"""`python -m dream` is the command `dream`."""

from dream.cli import main

main()
