"""From tasks to data sets, batches and reports.

``collect`` (rollouts of tasks, resumable), ``annotate`` and ``estimators`` (values of states), ``curate`` (filters and credit), ``publish``
(data sets with a card), ``evaluate`` (success rates), ``batching`` and ``rollouts`` (the manager of RL rollouts), ``pages`` (HTML).
``service`` opens what rollouts need; ``files`` and ``errors`` are theirs in common. Nothing here imports a training library.
"""
