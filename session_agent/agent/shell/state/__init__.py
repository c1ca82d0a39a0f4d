"""The state of a living shell as data: how a shell prints it, how it is read, restored entry by entry, compared and carried elsewhere."""
