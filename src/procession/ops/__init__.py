"""Ops: what a person starts, watches and stops; where the rooms are introduced to each other."""
