"""Save a model in a folder, load it again, and fetch it from or send it to the Hugging Face hub.

save("runs/mine", denoiser, schedule, {"steps": 1000})
denoiser = load_pretrained("runs/mine").denoiser
denoiser = load_pretrained("dvruette/gidd-small-p_unif-0.1").denoiser
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch import Tensor

from gidd.common.files import read_json, sha256, write_json
from gidd.common.optional import optional_package
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import CheckpointError, ConfigError
from gidd.models.backbones.dit import DiT
from gidd.models.denoiser import Denoiser
from gidd.models.importers.gidd_v1 import CONFIG, read_published
from gidd.models.record import (
    dit_config_from,
    record_plain,
    record_schedule,
    schedule_from,
    vocab_from,
)
from gidd.models.weights import (
    COPY_AGAIN,
    WEIGHTS,
    Pretrained,
    dit_from_tensors,
    read_safetensors,
    write_safetensors,
)

RECORD = "gidd.json"
NOISES = "schedule.safetensors"
FORMAT = 1
_KEYS = {"format", "model", "schedule", "vocabulary", "files", "training"}
_PATTERNS = ["*.safetensors", "*.json", "*.txt"]
"""The files that are fetched and sent: weights, records, vocabularies; never code or pickles."""


def save(
    folder: str | Path,
    denoiser: Denoiser,
    schedule: MixingSchedule,
    summary: dict[str, Any] | None = None,
) -> None:
    """Write `model.safetensors` and, last, `gidd.json`, which says what the weights are.

    If the machine stops on the way over an older save, loading says so: `gidd.json` holds the
    SHA-256 of the files it belongs to.
    """
    folder, backbone = Path(folder), denoiser.backbone
    if not isinstance(backbone, DiT):
        raise ConfigError(
            f"only a DiT can be saved here, got {type(backbone).__name__}. "
            "Save the state_dict of other backbones with safetensors.torch.save_file."
        )
    if schedule.vocab != denoiser.vocab:
        raise ConfigError(
            f"schedule.vocab must be the denoiser's {denoiser.vocab}, got {schedule.vocab}. "
            "Build both from one Vocab."
        )
    noise = record_schedule(schedule)  # before anything is written: it may refuse
    folder.mkdir(parents=True, exist_ok=True)
    files = {WEIGHTS: backbone.state_dict()} | ({NOISES: noise.tensors} if noise.tensors else {})
    for name, tensors in files.items():
        write_safetensors(folder / name, tensors)
    record = {
        "format": FORMAT,
        "model": record_plain(backbone.config),
        "schedule": noise.json,
        "vocabulary": record_plain(denoiser.vocab),
        "files": {name: sha256(folder / name) for name in files},
        "training": summary or {},
    }
    write_json(folder / RECORD, record)
    if NOISES not in files:
        (folder / NOISES).unlink(missing_ok=True)  # of an older save


def load(folder: str | Path, p_uniform: float | None = None) -> Pretrained:
    """A model from a folder: our layout, or the authors' published one.

    Args:
        folder: Where `gidd.json`, or `config.json`, and `model.safetensors` are.
        p_uniform: For a published checkpoint of the authors, the noise it was trained with.
    """
    folder = Path(folder)
    if (folder / RECORD).is_file():
        return _load_ours(folder)
    if (folder / CONFIG).is_file():
        return read_published(folder, p_uniform)
    raise CheckpointError(
        f"{folder} must hold {RECORD}, or {CONFIG} of the authors' layout, beside {WEIGHTS}; it "
        "holds neither. Check the path; for weights alone use gidd.models.read_training."
    )


def load_pretrained(name: str | Path, p_uniform: float | None = None) -> Pretrained:
    """A model from a local folder or, if there is none of that name, from the Hugging Face hub.

    Args:
        name: A folder, or an owner and a name such as "dvruette/gidd-small-p_unif-0.1".
        p_uniform: For a published checkpoint of the authors, the noise it was trained with; by
            default it is read off the end of the name.
    """
    ending = re.search(r"p_unif-(\d*\.?\d+)/?$", str(name))
    if p_uniform is None and ending:
        p_uniform = float(ending.group(1))
    if Path(name).is_dir():
        return load(name, p_uniform)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)):
        raise CheckpointError(
            f"{name} is neither a folder nor a name on the Hugging Face hub (owner/name). "
            "Check the path."
        )
    hub = optional_package("huggingface_hub", "hf")
    try:
        folder: str = hub.snapshot_download(str(name), allow_patterns=_PATTERNS)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{name} could not be fetched from the Hugging Face hub: {error}. "
            "Check the name and the connection, or give a local folder."
        ) from error
    return load(folder, p_uniform)


def push_to_hub(name: str, folder: str | Path, *, private: bool = False) -> None:
    """Send a saved model to the Hugging Face hub as owner/name; log in first (`hf auth login`)."""
    folder = Path(folder)
    if not (folder / RECORD).is_file():
        raise CheckpointError(f"{folder} holds no {RECORD}. Write the model there with `save`.")
    hub = optional_package("huggingface_hub", "hf")
    hub.create_repo(name, private=private, exist_ok=True)
    hub.upload_folder(repo_id=name, folder_path=str(folder), allow_patterns=[*_PATTERNS, "*.md"])


def _load_ours(folder: Path) -> Pretrained:
    path = folder / RECORD
    record = read_json(path, COPY_AGAIN, CheckpointError)
    if record.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: format must be {FORMAT}, got {record.get('format')!r}. "
            "It was written by another version of gidd; use that one."
        )
    if set(record) != _KEYS:
        raise CheckpointError(
            f"{path} must have the keys {sorted(_KEYS)}, got {sorted(record)}. "
            "The file is damaged or was edited; save or download it again."
        )
    config = dit_config_from(record["model"], f"{path}: model")
    vocab = vocab_from(record["vocabulary"], f"{path}: vocabulary")
    files = _read_files(folder, record["files"])
    schedule = schedule_from(record["schedule"], files.get(NOISES, {}), vocab, f"{path}: schedule")
    backbone = dit_from_tensors(config, files[WEIGHTS], folder / WEIGHTS)
    denoiser = Denoiser(backbone, vocab)
    return Pretrained(denoiser=denoiser, schedule=schedule, summary=record["training"])


def _read_files(folder: Path, digests: object) -> dict[str, dict[str, Tensor]]:
    """The tensor files that the record names, each of which must be the one it was written for."""
    if not isinstance(digests, dict) or not {WEIGHTS} <= set(digests) <= {WEIGHTS, NOISES}:
        raise CheckpointError(
            f"{folder / RECORD}: files must name {WEIGHTS} (and perhaps {NOISES}), got {digests}. "
            "The file is damaged or was edited; save or download it again."
        )
    files: dict[str, dict[str, Tensor]] = {}
    for name, expected in digests.items():
        files[name] = read_safetensors(folder / name)
        if sha256(folder / name) != expected:
            raise CheckpointError(
                f"{folder / name} is not the file that {RECORD} was written for: its SHA-256 "
                "differs. A save was interrupted or the file is damaged; save or copy it again."
            )
    return files
