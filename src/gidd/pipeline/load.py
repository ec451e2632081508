"""From the name of a model to a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gidd.common.devices import choose
from gidd.common.files import read_json, sha256
from gidd.data import tokenizers
from gidd.data.tokenizers import Tokenizer
from gidd.errors import CheckpointError, ConfigError, DataError
from gidd.models import DiT, Pretrained, load_pretrained
from gidd.models.hub import RECORD
from gidd.models.weights import COPY_AGAIN, WEIGHTS
from gidd.pipeline.pipeline import Pipeline
from gidd.pipeline.precision import Precision
from gidd.vocab import Vocab

_GPT2_SIZE = 50_258
"""GPT-2's ids and the mask: the vocabulary of the published checkpoints."""


def from_pretrained(
    name: str | Path,
    *,
    device: str | None = None,
    precision: Precision = "float32",
    rows_per_call: int | None = None,
    tokenizer: str | Path | Tokenizer | None = None,
    p_uniform: float | None = None,
) -> Pipeline:
    """A model with its tokenizer, ready to generate, infill, correct and score.

    Args:
        name: A folder that `gidd export` or `gidd.models.save` has written, a folder with a
            checkpoint of the authors, or a name on the Hugging Face hub.
        device: "cpu", "cuda", "mps"; by default the fastest there is.
        precision: Of the network's body; the head and all probabilities are float32.
        rows_per_call: Sequences in one network call. It must be the same for results to be the
            same bit by bit; by default 1 on a CPU and 16 elsewhere.
        tokenizer: If it is not beside the model: an object, a file, a folder, or a name such as
            "gpt2". By default the model's own; GPT-2's if it has none and as many ids as GPT-2.
        p_uniform: For a checkpoint of the authors, the noise it was trained with; by default it is
            read off the end of its name.
    """
    chosen_device = choose(device)  # before a large model is read
    folder = Path(name)
    if folder.is_dir():
        _require_model(folder)
    loaded = load_pretrained(name, p_uniform)
    chosen, note = _tokenizer(name, tokenizer, loaded.denoiser.vocab)
    backbone = loaded.denoiser.backbone
    assert isinstance(backbone, DiT)  # nothing else is loaded
    return Pipeline(
        loaded.denoiser,
        loaded.schedule,
        chosen,
        context=backbone.config.max_length,
        device=chosen_device,
        precision=precision,
        rows_per_call=rows_per_call,
        source=_source(name, loaded),
        notes=(*loaded.notes, *note),
    )


def _require_model(folder: Path) -> None:
    """A run's folder is easily mistaken for a model."""
    if (folder / RECORD).is_file() or not (folder / "checkpoints").is_dir():
        return
    raise CheckpointError(
        f"{folder} is the folder of a training run, not a model. Write its newest checkpoint as a "
        f"model with `gidd export {folder} --out models/{folder.resolve().name}` and give that."
    )


def _tokenizer(
    name: str | Path, given: str | Path | Tokenizer | None, vocab: Vocab
) -> tuple[Tokenizer, tuple[str, ...]]:
    """The tokenizer, and what there is to say about how it was found."""
    if given is not None:
        chosen = given if isinstance(given, Tokenizer) else tokenizers.named(str(given))
        return _fitting(chosen, vocab), ()
    folder = Path(name)
    try:
        if folder.is_dir() and not (folder / tokenizers.FILE).is_file():
            raise DataError(f"{folder} holds no {tokenizers.FILE}.")
        return _fitting(Tokenizer.load(name), vocab), ()
    except DataError as error:
        if vocab.size != _GPT2_SIZE:
            raise DataError(
                f"the model's tokenizer was not found: {error} Its vocabulary has {vocab.size:,} "
                "ids; name the tokenizer that it was trained with."
            ) from error
    note = f"{name} brings no tokenizer; its {_GPT2_SIZE:,} ids are taken to be GPT-2's."
    return _fitting(tokenizers.gpt2(), vocab), (note,)


def _fitting(tokenizer: Tokenizer, vocab: Vocab) -> Tokenizer:
    """The tokenizer, if its ids are the model's."""
    ours = tokenizer.vocab
    same_mask = vocab.mask_id in (None, ours.mask_id)
    if same_mask and vocab.size in (ours.size, ours.num_data_tokens):
        return tokenizer
    raise ConfigError(
        f"the tokenizer must be the model's, which has {vocab.size:,} ids and mask "
        f"{vocab.mask_id}, got one with {ours.size:,} ids and mask {ours.mask_id}. "
        "Name the tokenizer that the model was trained with."
    )


def _source(name: str | Path, loaded: Pretrained) -> dict[str, Any]:
    """What the manifest says of the model."""
    folder, digest = Path(name), None
    if (folder / RECORD).is_file():
        digest = read_json(folder / RECORD, COPY_AGAIN, CheckpointError)["files"][WEIGHTS]
    elif (folder / WEIGHTS).is_file():
        digest = sha256(folder / WEIGHTS)
    return {"name": str(name), "sha256": digest, "steps": loaded.summary.get("steps")}
