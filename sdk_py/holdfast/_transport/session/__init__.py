"""The session as the client sees it, pure: framing, the engine that resumes it, its channels and what refusals mean."""
