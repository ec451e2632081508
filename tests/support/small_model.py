"""A model that is small enough for tests and complete enough for the command line."""

from pathlib import Path

import torch

from gidd import models
from gidd.data import tokenizers
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.models import Denoiser
from gidd.vocab import Vocab
from support.sampling_worlds import small_dit

TEXT = (
    "I embrace with great satisfaction the opportunity which now presents itself of "
    "congratulating you on the present favorable prospects of our public affairs.\n"
)
CONTEXT = 32


def random_denoiser(vocab: Vocab, std: float = 0.15, context: int = CONTEXT) -> Denoiser:
    """A small DiT with random weights."""
    model = Denoiser(small_dit(vocab, context), vocab)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std, generator=generator)
        # some tokens are more likely than others, so that there is something to correct
        model.backbone.head.bias.normal_(std=2.0, generator=generator)
    return model


def write_model(folder: Path, *, p_uniform: float = 0.2, context: int = CONTEXT) -> Path:
    """Write a model with random weights and a byte-level tokenizer with a few merges."""
    tokenizer = tokenizers.train_tokenizer([TEXT, "Peace – and “plenty” for 🙂 all."], 300)
    denoiser = random_denoiser(tokenizer.vocab, context=context)
    vocab = tokenizer.vocab
    schedule = HybridSchedule(vocab, p_uniform) if p_uniform else MaskedSchedule(vocab)
    models.save(folder, denoiser, schedule, {"steps": 0})
    tokenizer.save(folder)
    return folder
