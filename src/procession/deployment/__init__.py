"""Deploys a pipeline on its machines: settings, secrets, processes with their arguments, and required packages."""
