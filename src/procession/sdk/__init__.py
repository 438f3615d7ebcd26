"""The SDK: for people who write connectors. A source feeds a gateway, a sink takes part in its rounds."""
