"""Living shells: a bash or sh that keeps its state from command to command."""
