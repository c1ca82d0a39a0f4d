"""A proxy between third-party harnesses and a policy: it records the calls of a harness as token ids, which become training samples.

``server`` is the proxy: HTTP (``http1``) in three ``dialects``, answered with ``answers`` or ``refusals``. A ``session`` is one
rollout: its ``prompts`` hold the sampled ids, its calls become samples in ``branches``. Programs in a sandbox without a network reach it
through ``sandbox.listen``.
"""
