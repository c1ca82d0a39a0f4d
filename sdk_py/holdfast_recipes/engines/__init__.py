"""Adapters for training engines: each turns rollouts in sandboxes into the records that one engine trains on.

``rows`` (pure) and ``groups`` make what all of them share: exact token ids with masks, log-probabilities and advantages, and a masked row
for everything that must carry no loss. ``swe`` opens a recipe from a file of settings. ``trl``, ``trl_async``, ``slime``, ``verl`` and
``verifiers`` import exactly one engine each, when they are imported or called; ``vllm`` is the policy behind the server that TRL uses.
Importing this module does nothing.
"""
