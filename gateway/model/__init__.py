"""The values that all parts of the gateway exchange: records of placement, options of sandboxes, and their forms in requests and documents.

Pure data: nothing here waits, reads a clock or imports another package of the gateway.
"""
