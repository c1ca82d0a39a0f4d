"""Assistant tasks with tool services (P §5). So far: ``scoring``."""
