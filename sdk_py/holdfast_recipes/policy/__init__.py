"""Policies, which produce the turns of a rollout: ``base`` (the two protocols, their results and errors), ``tokenizer``, ``scripted``
(without a model), ``openai_chat`` (any OpenAI-compatible endpoint), ``sglang`` (token ids and log-probabilities over HTTP) and
``endpoint`` (the HTTP client of both). The policy with weights in this process is in the package ``training``.
"""
