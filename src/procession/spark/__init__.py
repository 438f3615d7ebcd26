"""The Spark room: the only one that imports pyspark."""
