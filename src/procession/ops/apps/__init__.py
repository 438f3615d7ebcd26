"""Apps that ship with the command: what `procession demo` runs."""
