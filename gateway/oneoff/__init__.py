"""One-off work over REST: a command, a file, a listing or a patch, each over a connection of its own to the agent."""
