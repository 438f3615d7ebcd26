"""The supervisor: starts the parts of a pipeline on one machine and restarts those that die."""
