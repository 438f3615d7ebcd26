"""The dashboard: a page in a browser that shows a running or stopped pipeline."""
