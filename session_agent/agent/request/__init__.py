"""Validation of what a client sends: typed parameters and paths."""
