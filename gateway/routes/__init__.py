"""The routes of REST, a module for each kind of resource. Their table is in ``gateway.app``."""
