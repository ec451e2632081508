"""A causal language model that is small enough for tests, with a tokenizer of characters."""

from pathlib import Path
from typing import Any

import torch

LETTERS = "abcdefgh .<|>"
END = "<|end|>"
START = "<s>"


def small_tokenizer(*, prepends_bos: bool = False) -> Any:
    """One token for each character of `LETTERS`, and special tokens <|end|> and <s>."""
    from tokenizers import Tokenizer, decoders, models, processors
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(LETTERS)}, merges=[]))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([END, START])
    if prepends_bos:
        inner.post_processor = processors.TemplateProcessing(
            single=f"{START} $A", special_tokens=[(START, inner.token_to_id(START))]
        )
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=START, eos_token=END)


def small_llama(vocab_size: int = len(LETTERS) + 2, context: int = 64, seed: int = 0) -> Any:
    """A Llama of two layers with random weights, far from uniform predictions."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=context,
    )
    model, generator = LlamaForCausalLM(config), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5, generator=generator)
    return model


def write_grader(folder: Path, *, prepends_bos: bool = False) -> Path:
    """Write such a model and its tokenizer as transformers does."""
    small_llama().save_pretrained(folder)
    small_tokenizer(prepends_bos=prepends_bos).save_pretrained(folder)
    return folder


def nll_by_hand(model: Any, ids: list[int]) -> float:
    """Return -log p of tokens 1, 2, ..., each by its own forward pass on the tokens before it."""
    total = 0.0
    for end in range(1, len(ids)):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids[:end]])).logits[0, -1].double()
        total += float(logits.logsumexp(0) - logits[ids[end]])
    return total
