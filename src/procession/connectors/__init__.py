"""Connectors: programs at the two ends, each a small module on the SDK."""
