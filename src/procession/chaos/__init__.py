"""Chaos tests: inject faults into real processes and verify the output."""
