"""The commands of the command line: one module for each, or for a few that belong together."""
