"""The merge: sorted paths, put together in order. Pure."""
