"""The connector protocol as values: bytes in, frames out, and tables that say what may come when. Pure."""
