"""Mutation: removes one protecting line of the shipped code at a time, and checks whether a test notices."""
