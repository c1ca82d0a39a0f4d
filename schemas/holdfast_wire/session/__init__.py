"""The session state machine, the same for both ends (PROTOCOL §3-§6): ``client_session`` and ``agent_session`` on a common base."""
