"""Hosts from network namespaces on one machine, and the Spark cluster on them."""
