"""Creates savepoints, and changes a stopped pipeline with them: restore, rollback and the steps of an upgrade."""
