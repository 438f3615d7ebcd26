"""Spark's session, data source, tasks and exchanges. Besides `bench/` the only package that imports pyspark."""
