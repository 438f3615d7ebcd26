"""The connector protocol without I/O: decodes bytes into frames, and checks frames against lifecycle tables. Pure."""
