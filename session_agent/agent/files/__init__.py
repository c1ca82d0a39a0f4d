"""Files: read, write, archives, patches and file operations, as a chosen user."""
