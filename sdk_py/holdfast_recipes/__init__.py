"""Training and evaluation recipes on Holdfast: from tasks and rollouts to the rows and advantages that a trainer takes.

A second import package beside the SDK, which it uses through the public names of ``holdfast`` only; the service does not depend on
it. Layers, each importing only those before it: ``core`` (pure functions and records, standard library only), ``prompts``,
``harness`` and ``proxy``, ``swe``, ``web`` and ``claw``, then the command line. Importing this module does nothing.
"""
