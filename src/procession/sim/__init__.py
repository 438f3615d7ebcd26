"""The simulator: every decision core in one process, on a virtual clock, network and disk, from one seed. Pure."""
