"""The routes of REST, a module for each kind of resource, and the attach of sessions. Their table is in ``gateway.app``."""
