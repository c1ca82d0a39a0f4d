"""What a command wrote and how it ended, kept while a client may still ask for it."""
