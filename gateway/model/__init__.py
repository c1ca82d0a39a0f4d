"""The values every part of the gateway exchanges: records of placement, options of a sandbox, and how requests and documents spell them.

Pure data: nothing here waits, reads a clock or imports another package of the gateway.
"""
