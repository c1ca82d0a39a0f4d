"""One-off work over REST: a command, a file, a listing or a patch, each on a channel of its own to the agent."""
