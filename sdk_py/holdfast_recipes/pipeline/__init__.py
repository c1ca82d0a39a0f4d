"""From tasks to data sets and batches. So far: ``batching``, the decisions of the rollout manager without its input and output."""
