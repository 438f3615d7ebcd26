"""The simulator: runs all decision cores in one process, on a virtual clock, network and disk, from one seed.
Pure."""
