"""The agent that runs in a sandbox (``agent``), the privileged service of one machine (``node``), and the builder of the bundle
(``bundle``)."""
