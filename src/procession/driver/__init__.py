"""The driver process: connects Spark, the clients of the gateways and the commit."""
