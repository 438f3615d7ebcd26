"""Operators: what runs inside a task, between two exchanges. Pure."""
