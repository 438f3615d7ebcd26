"""The plan: what a user wrote, as a frozen graph, and how a chain of stages runs over Arrow batches. Pure."""
