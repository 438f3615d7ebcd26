"""The commit: one round of two-phase commit for each epoch, decided by Spark's commit log."""
