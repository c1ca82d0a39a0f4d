"""Who sends a request and what it may do: principals, the keys file, and the deployment's secrets.

Knows no HTTP beyond the names of two headers. ``gateway.app`` sets the principal of each request; ``use_cases`` take it as an argument.
"""
