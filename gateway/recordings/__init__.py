"""Recordings: what happened in a sandbox, kept by the service after the sandbox is gone.

``recorder`` makes them, ``lines`` has their form, and ``files`` their place: a folder of one machine, or an object store.
"""
