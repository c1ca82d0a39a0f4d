"""Tar archives and their extraction below one directory: the same code unpacks uploads in a sandbox and downloads on the client's machine.

``tar`` reads and writes the format and opens no file. ``safe_path`` resolves untrusted paths below a directory, and ``extraction`` writes
there. Archives are hostile in both directions.
"""
