"""The dashboard: one page in a browser that shows a pipeline, live or as it was."""
