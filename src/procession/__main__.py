"""`python -m procession` is the command `procession`."""

from procession.ops.cli import main

main()
