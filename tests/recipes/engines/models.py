"""A tiny causal model with random weights, and its tokenizer, both built in memory, for the environments that have transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.recipes.engines.tiny import END, START, WORDS


def tokenizer() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="ok"))
    made.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token=START, eos_token=END, unk_token="ok", padding_side="left"
    )


def model(seed: int = 0, words: int = len(WORDS)) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


def saved(folder: Path, seed: int = 0) -> Path:
    """Saves the model in a folder, because engines load a model by its path."""
    model(seed).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
