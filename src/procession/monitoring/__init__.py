"""Monitors pipelines: progress, status, history, metrics and traces, read from its files and gateways."""
