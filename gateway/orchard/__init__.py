"""What exists only for clients of Orchard Env: its JSON terminal, and the detection of its repeated exec requests."""
