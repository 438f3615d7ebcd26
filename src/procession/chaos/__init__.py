"""Chaos: breaking things on purpose, and judging what came out."""
