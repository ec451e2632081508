"""A model of characters with random weights and a word list, for the mechanics of correction."""

from functools import partial
from pathlib import Path
from string import ascii_letters

from gidd.proofreading.parts import parts_of
from gidd.proofreading.words import WORDS_FILE, WordList
from support.sampling_worlds import random_denoiser
from support.small_model import TEXT

from gidd import models
from gidd.data.tokenizers import character_level
from gidd.diffusion.schedules import HybridSchedule
from gidd.pipeline import correct

LETTER = "the opportunity which now presents itself\nto the peopel of teh union, and the sattes.\n"
PART = 24
CONTEXT = 128


def write_proofreader(folder: Path) -> Path:
    """Write the model; what it corrects makes no sense, but is the same in every run."""
    tokenizer = character_level("\n ,.'" + ascii_letters, has_unknown=True)
    denoiser = random_denoiser(tokenizer.vocab, CONTEXT)
    models.save(folder, denoiser, HybridSchedule(tokenizer.vocab, 0.3), {"steps": 0})
    tokenizer.save(folder)
    WordList.of_texts([TEXT, "The people of the union, these states and thee."]).save(
        folder / WORDS_FILE
    )
    return folder


def cut_into_small_parts() -> None:
    """Cut texts into small parts, so that a short one has several."""
    correct.parts_of = partial(parts_of, size=PART)  # pyright: ignore
