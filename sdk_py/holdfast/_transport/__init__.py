"""How sessions and requests reach the service: a pure core, and an implementation for each API with the same names.

``session`` and ``rest`` are pure; ``aio`` and ``threads`` own sockets, clocks and waiting. The code of ``holdfast._async`` imports
``aio``; the generated ``holdfast._sync`` imports ``threads`` in its place.
"""
