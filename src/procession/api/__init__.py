"""What people write: pipelines, stages, windows, aggregates, tables, codecs."""
