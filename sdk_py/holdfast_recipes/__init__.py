"""Training and evaluation recipes on Holdfast: from tasks and rollouts to the rows and advantages that a trainer takes.

A wheel of its own beside the SDK, which it uses through the public names of ``holdfast`` only; the service does not depend on
it. Layers, each importing only those before it: ``core`` (pure functions and records, standard library only), ``prompts``,
``harness`` and ``proxy``, ``swe``, ``web`` and ``claw``, then the command line. Importing this module does nothing.
"""

__version__ = "0.1.0.dev0"
"""The same as ``holdfast.__version__``: both wheels are built from one commit."""
