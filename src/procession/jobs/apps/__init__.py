"""Apps that ship with the commands."""
