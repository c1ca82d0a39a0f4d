"""What a client sends, validated: typed parameters and paths."""
