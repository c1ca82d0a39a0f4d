"""Between third-party harnesses and a policy: what a harness asks is recorded as token ids and becomes training samples.

So far: ``branches``, from recorded calls to samples.
"""
