"""The simulator: every pure core in one process, on a virtual clock, network and disk, from one seed. Pure."""
