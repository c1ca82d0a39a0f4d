"""Images: where they come from, how they are kept, and what a sandbox needs of one."""
