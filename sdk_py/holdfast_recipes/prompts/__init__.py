"""The prompts of the recipes as data: our own wording, with a version and a digest that goes into every trajectory.

What others may import: ``base`` (``Prompt``), ``values`` (value annotation) and ``swe`` (repository repair). Pure, like the core.
"""
