"""The process that agents are forked from, and the node's end of it."""
