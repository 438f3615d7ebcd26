"""Storage: durable files. The ingress log and its segments, the journal, the run store."""
