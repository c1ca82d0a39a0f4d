"""Patches: unified diffs, applied to files completely or not at all."""
