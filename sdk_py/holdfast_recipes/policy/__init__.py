"""Where turns come from: ``base`` (the two protocols, their results and errors), ``tokenizer``, ``scripted`` (no model at all),
``openai_chat`` (any OpenAI-compatible endpoint) and ``sglang`` (token ids and log-probabilities over HTTP). The one that holds weights
in this process is the training package's.
"""
