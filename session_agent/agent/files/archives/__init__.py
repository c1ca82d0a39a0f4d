"""Uploads and downloads of directories as tar streams."""
