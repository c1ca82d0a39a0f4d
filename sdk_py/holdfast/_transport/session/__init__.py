"""The client's side of a session, without I/O: framing, the engine that resumes the session, channels, and the meaning of refusals."""
