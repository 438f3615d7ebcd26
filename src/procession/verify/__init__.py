"""Verification: compares committed output with the input."""
