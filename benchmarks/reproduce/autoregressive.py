"""The autoregressive baseline and grader: a Llama, trained on the batches of a diffusion run."""

from pathlib import Path
from typing import Any

import torch

from gidd.common.optional import optional_package
from gidd.data.loading.loader import BatchSource, open_split
from gidd.data.tokenizers import Tokenizer
from gidd.diffusion.loss import fused_cross_entropy
from gidd.models import DiTConfig
from gidd.runs.data import loader_config
from gidd.training.config import RunConfig
from gidd.training.optim import adamw


def llama_config(size: DiTConfig) -> Any:
    """Return a `transformers.LlamaConfig` with hidden size, layers, heads and parameters of a DiT.

    A Llama block has 4 D^2 + 3 D F + 2 D parameters; F is chosen to match those of a DiT block.
    """
    width = size.width
    per_block = size.num_block_parameters / size.num_layers
    intermediate = (per_block - 4 * width**2 - 2 * width) / (3 * width)
    return optional_package("transformers", "hf").LlamaConfig(
        vocab_size=size.vocab_size,
        hidden_size=width,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        intermediate_size=32 * round(intermediate / 32),
        max_position_embeddings=size.max_length,
        tie_word_embeddings=False,
        bos_token_id=None,  # the defaults are token ids of another tokenizer
        eos_token_id=None,
    )


def train_baseline(run: RunConfig, out: Path) -> None:
    """Minimise the next-token cross-entropy with the batches and learning rates of a run.

    Writes the model and its tokenizer to a folder that `transformers` and `gidd eval` load.
    """
    assert run.data.folder is not None
    tokenizer = Tokenizer.load(run.data.folder)
    torch.manual_seed(run.train.seed)
    size = run.network_config(tokenizer.vocab.size)
    model = optional_package("transformers", "hf").LlamaForCausalLM(llama_config(size))
    optimizer = adamw(model, run.optim)
    batches = BatchSource(open_split(run.data.folder), loader_config(run, tokenizer))
    for step in range(run.train.steps):
        for group in optimizer.param_groups:
            group["lr"] = run.optim.learning_rate_at(step, run.train.steps)
        tokens = torch.from_numpy(batches[step]["tokens"]).long()
        states = model.model(input_ids=tokens, use_cache=False).last_hidden_state[:, :-1]
        labels, head = tokens[:, 1:].flatten(), model.lm_head.weight
        loss, _ = fused_cross_entropy(labels, states.flatten(0, 1), head, None, 1 / len(labels))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), run.optim.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
    partial = out.with_name(f"{out.name}.partial")
    model.save_pretrained(partial)
    tokenizer.save(partial)
    partial.rename(out)
