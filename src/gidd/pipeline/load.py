"""Load a pipeline by the name of its model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gidd.common.devices import resolve_device
from gidd.common.local_models import local_model
from gidd.data import tokenizers
from gidd.data.tokenizers import (
    TOKENIZER_FILE,
    FastTokenizer,
    Tokenizer,
    as_tokenizer,
    find_tokenizer,
)
from gidd.diffusion.constants import TRAINING_EPS
from gidd.diffusion.schedules import MaskedSchedule
from gidd.errors import ConfigError, DataError
from gidd.models import Denoiser, Pretrained, load_pretrained
from gidd.pipeline.defaults import read_correction, read_examples, read_sampling
from gidd.pipeline.pipeline import Pipeline
from gidd.pipeline.precision import Precision, choose_precision, convert, precision_of
from gidd.vocab import Vocab

_GPT2_SIZE = tokenizers.GPT2_VOCAB_SIZES["gpt2"]
"""GPT-2's tokens and the mask: the vocabulary of the published checkpoints."""

_PASS_TOKENIZER = (
    "Pass the tokenizer it was trained with: --tokenizer NAME, or tokenizer=NAME in Python."
)


def from_pretrained(
    name: str | Path,
    *,
    device: str | torch.device | None = None,
    precision: Precision | None = None,
    dtype: torch.dtype | str | None = None,
    batch_size: int | None = None,
    tokenizer: str | Path | Tokenizer | FastTokenizer | None = None,
    p_uniform: float | None = None,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
) -> Pipeline:
    """Load a model and its tokenizer, ready to generate, infill, correct and score.

    Args:
        name: A folder written by `gidd export` or `gidd.models.save`, a folder with a checkpoint of
            the authors or of another project (docs/importers.md), the name of an installed model,
            such as "nano" of gidd-nano, or a name on the Hugging Face hub.
        device: "cpu", "cuda", "cuda:1" or "mps"; by default the fastest available.
        precision: Numeric precision of the backbone: "float32", "bf16" or, on NVIDIA GPUs, "tf32";
            by default "bf16" on CUDA, "float32" elsewhere. Logits and x_theta are in float32.
        dtype: The precision as torch names it: torch.bfloat16 or torch.float32.
        batch_size: Batch size of a forward pass; by default 1 on a CPU and 16 on other devices.
            Results are identical bit by bit only for equal values.
        tokenizer: Tokenizer if the model has none: an object (also a fast tokenizer of
            `transformers`), a file, a folder, or a name such as "gpt2". By default the model's own,
            or GPT-2's if the vocabulary sizes agree.
        p_uniform: Uniform noise that a checkpoint of the authors was trained with; by default it is
            parsed from the end of its name.
        revision: Branch, tag or commit of a model on the hub; by default the newest.
        token: Access token of the hub, for a private model; by default that of `hf auth login`.
        cache_dir: Folder for files that are downloaded; by default the hub's cache.
    """
    chosen_device = resolve_device(device)  # fail before a large model is read
    precision = choose_precision(precision_of(dtype, precision), chosen_device)
    settings = {"revision": revision, "token": token, "cache_dir": cache_dir}
    download = {key: value for key, value in settings.items() if value is not None}
    loaded = load_pretrained(name, p_uniform, **download)
    chosen, note = _tokenizer(local_model(name) or name, tokenizer, loaded, download)
    loaded = _without_unused_rows(loaded, chosen.vocab.size)
    # in place, as nobody else has it: a pipeline converts a copy
    convert(loaded.denoiser, precision, chosen_device)
    return pipeline_of(
        replace(loaded, notes=(*loaded.notes, *note)),
        chosen,
        name=str(name),
        device=chosen_device,
        precision=precision,
        batch_size=batch_size,
    )


def pipeline_of(
    model: Pretrained,
    tokenizer: Tokenizer,
    *,
    name: str,
    device: torch.device,
    context: int | None = None,
    **options: Any,
) -> Pipeline:
    """Return the pipeline of a model that was loaded or trained.

    `context` is the maximum length of a network whose configuration does not have one; `options`
    are further arguments of `Pipeline`.
    """
    config: Any = getattr(model.denoiser.backbone, "config", None)
    steps = model.summary.get("steps")  # from a file: it can be anything
    pipe = Pipeline(
        model.denoiser,
        model.schedule,
        tokenizer,
        context=getattr(config, "max_length", None) or context or 0,
        device=device,
        source={
            "name": name,
            "sha256": model.sha256 or None,
            "steps": steps if type(steps) is int else None,
            **_data_settings(model.summary),
        },
        notes=model.notes,
        times=_times(model.summary),
        block_lengths=_block_lengths(model.summary),
        sampling=None if model.folder is None else read_sampling(model.folder),
        correction=None if model.folder is None else read_correction(model.folder),
        examples=None if model.folder is None else read_examples(model.folder),
        **options,
    )
    pipe.warm_up()
    return pipe


def _tokenizer(
    name: str | Path,
    tokenizer: str | Path | Tokenizer | FastTokenizer | None,
    loaded: Pretrained,
    download: dict[str, Any],
) -> tuple[Tokenizer, tuple[str, ...]]:
    vocab, folder, notes = loaded.denoiser.vocab, Path(name), ()
    if isinstance(tokenizer, str | Path):
        chosen = Tokenizer.load(str(tokenizer), model=vocab)
    elif tokenizer is not None:
        chosen = as_tokenizer(tokenizer, vocab)
    else:
        try:
            if folder.is_dir() and not (folder / TOKENIZER_FILE).exists():
                raise DataError(f"{folder} has no {TOKENIZER_FILE}.")
            path = find_tokenizer(name, **download)
        except DataError as error:
            if vocab.size != _GPT2_SIZE:
                raise DataError(
                    f"the model's tokenizer was not found: {error} Its vocabulary has "
                    f"{vocab.size:,} tokens. {_PASS_TOKENIZER}"
                ) from error
            chosen = tokenizers.gpt2()
            notes = (f"{name} has no tokenizer; GPT-2's is used, as it has {_GPT2_SIZE:,} tokens.",)
        else:  # a damaged one is an error, and never replaced
            chosen = Tokenizer.load(path, model=vocab)
    ours = chosen.vocab
    # a model without a mask has no row for the tokenizer's, which is last
    sizes = (vocab.size, vocab.size + 1) if vocab.mask_id is None else (vocab.size,)
    is_smaller = loaded.has_unused_rows and ours.size < vocab.size
    if vocab.mask_id in (None, ours.mask_id) and (is_smaller or ours.size in sizes):
        return chosen, (*chosen.notes, *notes)
    raise ConfigError(
        f"the tokenizer must match the model's vocabulary of {vocab.size:,} tokens with mask id "
        f"{vocab.mask_id}, got {ours.size:,} tokens with mask id {ours.mask_id}. "
        f"{_PASS_TOKENIZER}"
    )


def _without_unused_rows(loaded: Pretrained, num_tokens: int) -> Pretrained:
    denoiser = loaded.denoiser
    if not loaded.has_unused_rows or num_tokens >= denoiser.vocab.size:
        return loaded
    vocab = Vocab(num_tokens, mask_id=denoiser.vocab.mask_id)
    smaller = Denoiser(denoiser.backbone, vocab)
    return replace(loaded, denoiser=smaller, schedule=MaskedSchedule(vocab))


def _data_settings(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the recorded format and padding of a model's training data."""
    recorded: Any = summary.get("run", summary.get("source"))  # from a file: it can be anything
    match recorded:
        case {"data": {"format": "text" | "chat" as kind, "padding": "learned" | "ignored" as pad}}:
            return {"data": {"format": kind, "padding": pad}}
        case _:
            return {}


def _block_lengths(summary: dict[str, Any]) -> tuple[int, ...]:
    match summary:  # from a file: it can be anything
        case {"block_lengths": [*lengths]} | {"run": {"objective": {"block_lengths": [*lengths]}}}:
            sizes: list[Any] = list(lengths)
            return tuple(n for n in sizes if type(n) is int and n > 0)
        case _:
            return ()


def _times(summary: dict[str, Any]) -> tuple[float, float]:
    match summary:  # from a file: it can be anything
        case {"times": [float(low), float(high)]} if 0 <= low < high <= 1:
            return low, high
        case {"run": {"objective": {"eps": float(eps)}}} if 0 <= eps < 0.5:
            return eps, 1 - eps
        case _:
            return TRAINING_EPS, 1 - TRAINING_EPS
