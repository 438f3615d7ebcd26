"""The apps that benchmarks run."""
