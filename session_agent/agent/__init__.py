"""The session agent: what runs in a sandbox as its first process and serves its clients. ``startup.server`` begins it."""
