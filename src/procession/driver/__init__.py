"""The driver process: Spark, the gateways' clients and the commit, put together."""
