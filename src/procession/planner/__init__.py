"""The planner: a graph in, a plan out. Pure."""
