"""Training on PyTorch: the only layer of the recipes that imports torch (extra ``train``).

What others may import, by module: ``model`` (a small transformer from scratch), ``policy`` (sampling from it), ``batches`` (rows of
tokens to tensors), ``loss`` (the two objectives), ``sft`` and ``rl`` (the two runs, resumable). Sizes are those of a miniature: what is
tested here are algorithms, on one core. Importing this package imports no torch; its modules do.
"""
