"""Operators: the code that runs inside a task, between two exchanges. Pure."""
