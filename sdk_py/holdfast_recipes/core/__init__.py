"""The pure core of the recipes: records and algorithms, with no input or output, no clock, no asyncio and no package outside the
standard library. Randomness enters as a seed.

What others may import, by module: ``trajectory`` and ``records`` (what a rollout leaves), ``template``, ``calls`` and ``spans`` (text,
tool calls, tokens that get loss), ``values`` and ``credit`` (credit-assignment SFT), ``balance``, ``groups`` and ``expectation``
(Balanced Adaptive Rollout), ``advantage``, ``objective`` and ``schedule`` (what an optimiser step needs), ``metrics`` (pass@k,
intervals), ``curation``, ``dedup``, ``selection`` and ``diffs`` (data sets), ``presets`` and ``cost`` (the paper's tables).
"P" in docstrings is the paper, arXiv 2605.15040.
"""
