"""Mutation: takes one protecting line out of the shipped code at a time, and looks whether anything notices."""
