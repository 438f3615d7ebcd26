"""Merges sorted paths into one order. Pure."""
