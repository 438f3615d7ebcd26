"""The planner: turns a graph into a plan. Pure."""
