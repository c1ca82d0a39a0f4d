"""What the gateway does, one module for each use case: create, describe, change, delete, execute, files, groups, images.

A use case takes the parts of the replica (``service.Gateway``), a principal and typed arguments, returns records, and raises HoldfastError.
It knows no HTTP (.importlinter): the faces in ``gateway.faces`` read requests and write answers. The other modules are what several use
cases share: ``admission`` (the queue of creates, quotas), ``background`` (work that outlives its request), ``activity`` (idle time),
``agent_channel`` (one request to an agent), ``agent_reports`` (which of its values are accepted).
"""
