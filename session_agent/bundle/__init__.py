"""Builds the injectable bundle: a folder that starts the agent in any image (``python -m session_agent.bundle``)."""
