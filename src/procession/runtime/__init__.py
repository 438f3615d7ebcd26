"""Ports: what our code asks of the machine, and the machine's own implementation of it."""
