"""The sources and sinks that we ship, each a small module on the SDK."""
