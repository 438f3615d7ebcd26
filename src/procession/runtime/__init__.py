"""Ports: the functions that code needs of the machine, and the machine's own implementation of them."""
