"""The agent loop, its tools and its limits. ``loop`` plays one rollout with a policy (``conversation``) and tools (``toolset``: ``shell``
with a subshell per call, ``editor`` with a living shell); ``layers`` makes ``limits`` hold; ``tools``, ``observations`` and ``edits`` are
the pure parts: definitions, what a policy is shown, the file editor on text.
"""
