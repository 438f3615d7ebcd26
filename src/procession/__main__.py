"""`python -m procession` is the command `procession`."""

from procession.ops.cli import main

# A process that a benchmark starts loads this module, too, under another name.
if __name__ == "__main__":
    main()
