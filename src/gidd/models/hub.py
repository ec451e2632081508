"""Save a model to a folder, load it, and download it from or upload it to the Hugging Face hub.

save("runs/mine", denoiser, schedule, {"steps": 1000})
denoiser = load_pretrained("runs/mine").denoiser
denoiser = load_pretrained("dvruette/gidd-small-p_unif-0.1").denoiser
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from gidd.common.config.registry import component_names
from gidd.common.files import CONTEXT_TOKENS, explain_damage, read_json, sha256, write_json
from gidd.common.local_models import HUB_NAME, local_model, require_model_name
from gidd.common.optional import optional_package
from gidd.common.terminal import shorten
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import CheckpointError, ConfigError
from gidd.models.backbones.hf_config import FAMILIES
from gidd.models.denoiser import Backbone, Denoiser
from gidd.models.importers import read_foreign
from gidd.models.importers.checkpoint import CONFIG, read_checkpoint
from gidd.models.importers.hf import read_hf
from gidd.models.networks import network_from_tensors, require_network
from gidd.models.record import (
    network_config_from,
    record_network,
    record_schedule,
    record_vocab,
    require_valid,
    schedule_from,
    vocab_from,
)
from gidd.models.weights import (
    COPY_AGAIN,
    WEIGHTS,
    Pretrained,
    Shape,
    read_safetensors,
    read_shapes,
    require_tensors,
    write_safetensors,
)

MODEL_RECORD = "gidd.json"
SCHEDULE_TENSORS = "schedule.safetensors"
MODEL_FORMAT = 1
_KEYS = {"format", "model", "schedule", "vocabulary", "files", "training"}
_PATTERNS = ["*.safetensors", "*.json", "*.txt"]
"""Files that are downloaded and uploaded: weights, records, vocabularies; no code, no pickles."""


def save(
    folder: str | Path,
    denoiser: Denoiser,
    schedule: MixingSchedule,
    summary: dict[str, Any] | None = None,
) -> None:
    """Write `model.safetensors` and, last, `gidd.json`, which describes the model.

    `gidd.json` holds the SHA-256 of the tensor files: loading detects an interrupted overwrite.
    """
    folder, backbone = Path(folder), cast(nn.Module, denoiser.backbone)
    model = record_network(getattr(backbone, "config", backbone))  # raises if it cannot be saved
    if schedule.vocab != denoiser.vocab:
        raise ConfigError(f"schedule.vocab must be {denoiser.vocab}, got {schedule.vocab}.")
    noise, distributions = record_schedule(schedule)
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[str, Tensor]] = {WEIGHTS: dict(backbone.named_parameters())}
    if distributions:
        files[SCHEDULE_TENSORS] = distributions
    for name, tensors in files.items():
        write_safetensors(folder / name, tensors)
    record = {
        "format": MODEL_FORMAT,
        "model": model,
        "schedule": noise,
        "vocabulary": record_vocab(denoiser.vocab),
        "files": {name: sha256(folder / name) for name in files},
        "training": summary or {},
    }
    write_json(folder / MODEL_RECORD, record)
    if not distributions:
        (folder / SCHEDULE_TENSORS).unlink(missing_ok=True)  # of an older save


def load(folder: str | Path, p_uniform: float | None = None) -> Pretrained:
    """Load a model from a folder in gidd's layout (`gidd.json`) or another's (`config.json`).

    `p_uniform` is the fraction of uniform noise that a published checkpoint was trained with.
    """
    folder = Path(folder)
    with explain_damage(str(folder), COPY_AGAIN, CheckpointError):
        if (folder / MODEL_RECORD).is_file():
            return _load_gidd(folder)
        if (folder / CONFIG).is_file():
            return read_foreign(folder, p_uniform)
    if (folder / "checkpoints").is_dir():
        raise CheckpointError(
            f"{folder} is the folder of a training run, not a model. Export it with "
            f"`gidd export {folder} --out models/{folder.resolve().name}` and use that."
        )
    names = ", ".join(component_names("importer"))
    raise CheckpointError(
        f"{folder} must contain {WEIGHTS} and {MODEL_RECORD}, or {CONFIG} of a model of {names}; "
        "it contains neither. Check the path."
    )


def load_pretrained(
    name: str | Path, p_uniform: float | None = None, **download: Any
) -> Pretrained:
    """Load a model from a folder, an installed distribution or the Hugging Face hub, in this order.

    Args:
        name: A folder, the name of an installed model, such as "nano", or a model on the hub, such
            as "dvruette/gidd-small-p_unif-0.1".
        p_uniform: Fraction of uniform noise that a published checkpoint was trained with; by
            default taken from the end of the name.
        **download: Where a model on the hub is downloaded from and to: revision, token, cache_dir.
    """
    suffix = re.search(r"p_unif-(\d*\.?\d+)/?$", str(name))
    folder = _find(name, **download)
    loaded = load(folder, float(suffix[1]) if suffix and p_uniform is None else p_uniform)
    return replace(loaded, folder=folder)


class NetworkSource(NamedTuple):
    """A network with trained weights and a registered `config`, without its noise."""

    folder: Path
    """Where it was found; its tokenizer is there too, if it has one."""
    network: nn.Module
    sha256: str
    num_tokens: int
    """Rows of the embedding and the head that have a token."""
    mask_id: int | None
    notes: tuple[str, ...] = ()
    is_denoiser: bool = True
    """False for a language model of `transformers`, which is yet to become one."""


def load_network(name: str | Path) -> NetworkSource:
    """Load the network of any model: ours, another project's, or one of `transformers`."""
    folder = _find(name)
    is_foreign = not (folder / MODEL_RECORD).is_file() and (folder / CONFIG).is_file()
    if is_foreign and read_checkpoint(folder).field("model_type") in FAMILIES:
        config, tensors, digest = read_hf(folder)
        network = network_from_tensors(config, tensors)
        return NetworkSource(folder, network, digest, config.vocab_size, None, (), False)
    loaded = load_pretrained(name)
    vocab, network = loaded.denoiser.vocab, cast(nn.Module, loaded.denoiser.backbone)
    return NetworkSource(folder, network, loaded.sha256, vocab.size, vocab.mask_id, loaded.notes)


def _find(name: str | Path, **download: Any) -> Path:
    folder = local_model(name)
    if folder is not None and download:
        raise ConfigError(
            f"{', '.join(download)} must be left out for a local model, got {name}. They are for "
            "models on the Hugging Face hub."
        )
    return folder or _download(str(name), **download)


def _download(name: str, **settings: Any) -> Path:
    require_model_name(name)
    missing = f"{name} is not a folder here"
    try:
        hub = optional_package("huggingface_hub", "hf")
    except ConfigError as error:
        raise ConfigError(f"{missing}. To download it: {error}") from error
    try:
        return Path(hub.snapshot_download(name, allow_patterns=_PATTERNS, **settings))
    except Exception as error:  # besides OSError those of the HTTP client, e.g. of a proxy
        # "not in the local cache either" has the connection error as its cause
        reason = error.__cause__ if isinstance(error, FileNotFoundError) else None
        raise CheckpointError(
            f"{missing}, and could not be downloaded from the Hugging Face hub: "
            f"{_one_line(reason or error)}. Check the path, or the name and the connection."
        ) from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")


def files_to_push(folder: str | Path) -> dict[str, int]:
    """Return the files of a saved model that `push_to_hub` uploads, with their sizes in bytes."""
    folder = local_model(folder) or Path(folder)
    if not (folder / MODEL_RECORD).is_file():
        raise CheckpointError(
            f"{folder} contains no {MODEL_RECORD}. Write it with `gidd export` or `Pipeline.save`."
        )
    for name, digest in _read_record(folder / MODEL_RECORD)["files"].items():
        _read_shapes(folder / name, digest)
    files = sorted(file for file in folder.iterdir() if file.is_file())
    return {f.name: f.stat().st_size for f in files if f"*{f.suffix}" in (*_PATTERNS, "*.md")}


def push_to_hub(name: str, folder: str | Path, *, private: bool = False) -> None:
    """Upload a saved model to the Hugging Face hub as owner/name, after `hf auth login`.

    The token is the one of `hf auth login` or of the environment variable HF_TOKEN.
    """
    if not re.fullmatch(HUB_NAME, name):
        raise CheckpointError(f"{shorten(name)} must be a name on the Hugging Face hub, owner/name")
    files = list(files_to_push(folder))
    hub = optional_package("huggingface_hub", "hf")
    try:
        hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=str(folder), allow_patterns=files)
    except Exception as error:  # besides OSError those of the HTTP client, e.g. of a proxy
        raise CheckpointError(
            f"{folder} could not be uploaded to {name} on the Hugging Face hub: "
            f"{_one_line(error)}. Check the name and log in with `hf auth login`."
        ) from error


def _load_gidd(folder: Path) -> Pretrained:
    path = folder / MODEL_RECORD
    record = _read_record(path)
    config = network_config_from(record["model"], f"{path}: model")
    vocab = vocab_from(record["vocabulary"], f"{path}: vocabulary")
    digests = record["files"]
    require_network(config, _read_shapes(folder / WEIGHTS, digests[WEIGHTS]), folder / WEIGHTS)
    required = (
        f"{path}: vocabulary.size must be at most {config.vocab_size}, the rows of the embedding"
    )
    require_valid(vocab.size <= config.vocab_size, required, vocab.size)
    CONTEXT_TOKENS.require(config.max_length, f"{path}: model.max_length", CheckpointError)
    noise: dict[str, Tensor] = {}
    if SCHEDULE_TENSORS in digests:
        file = folder / SCHEDULE_TENSORS
        shapes = _read_shapes(file, digests[SCHEDULE_TENSORS])
        require_tensors({name: (vocab.size,) for name in shapes}, shapes, file)
        noise = read_safetensors(file)
    schedule = schedule_from(record["schedule"], noise, vocab, f"{path}: schedule")
    network = network_from_tensors(config, read_safetensors(folder / WEIGHTS))
    return Pretrained(
        denoiser=Denoiser(cast(Backbone, network), vocab),
        schedule=schedule,
        summary=record["training"],
        sha256=digests[WEIGHTS],
    )


def _read_record(path: Path) -> dict[str, Any]:
    """Read gidd.json; types of its parts are checked, values are not."""
    record = read_json(path, COPY_AGAIN, CheckpointError)
    if record.get("format") != MODEL_FORMAT:
        got = shorten(record.get("format"))
        raise CheckpointError(f"{path}: format must be {MODEL_FORMAT}, got {got}: another version.")
    require_valid(set(record) == _KEYS, f"{path} must have the keys {sorted(_KEYS)}", list(record))
    training, files = record["training"], record["files"]
    require_valid(isinstance(training, dict), f"{path}: training must be an object", training)
    names = cast("set[object]", set(files)) if isinstance(files, dict) else set[object]()
    required = f"{path}: files must list {WEIGHTS} and may list {SCHEDULE_TENSORS}"
    require_valid({WEIGHTS} <= names <= {WEIGHTS, SCHEDULE_TENSORS}, required, files)
    for name, digest in cast("dict[str, object]", files).items():
        is_digest = isinstance(digest, str) and bool(re.fullmatch("[0-9a-f]{64}", digest))
        required = f"{path}: files: the SHA-256 of {name} must have 64 hexadecimal digits"
        require_valid(is_digest, required, digest)
    return record


def _read_shapes(file: Path, expected: str) -> dict[str, Shape]:
    shapes = read_shapes(file)
    if sha256(file) != expected:
        problem = f"does not match the SHA-256 in {MODEL_RECORD}: an interrupted save, or damage"
        raise CheckpointError(f"{file} {problem}. Save or copy it again.")
    return shapes
