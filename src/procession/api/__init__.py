"""The API for applications: pipelines, stages, windows, aggregates and tables."""
