"""Between third-party harnesses and a policy: what a harness asks is recorded as token ids and becomes training samples.

``server`` is the proxy: HTTP (``http1``) in three ``dialects``, answered with ``answers`` or ``refusals``. A ``session`` is one
rollout: its ``prompts`` hold the sampled ids, its calls become samples in ``branches``. ``relay_link`` brings programs in a sandbox
without a network to the server, by the script ``relay`` inside.
"""
