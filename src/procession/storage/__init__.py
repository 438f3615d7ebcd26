"""Storage: files that survive. The ingress log and its segments, the journal, the run store."""
