"""Starting, watching, killing and reaping processes; their users, limits and privileges. Imports nothing of sessions or commands."""
