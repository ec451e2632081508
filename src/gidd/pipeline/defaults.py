"""The sampling options that a model recommends: `sampling.json` in its folder, without torch."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from gidd.common.config.allowed import problems_of
from gidd.common.config.codec import from_plain
from gidd.common.files import read_json, write_json
from gidd.common.local_models import local_model
from gidd.common.optional import optional_package
from gidd.errors import CheckpointError, ConfigError
from gidd.pipeline.options import SamplingOptions

SAMPLING_FILE = "sampling.json"
_REMEDY = "Correct it or delete it: without it, the defaults of the library are used."
_CORRECTION = "self_correction"


def write_sampling(folder: Path, options: SamplingOptions) -> None:
    """Write the options that differ from the defaults of the library; none: no file."""
    plain, default = asdict(options), asdict(SamplingOptions())
    changed = {name: value for name, value in plain.items() if value != default[name]}
    if _CORRECTION in changed:
        passes = {k: v for k, v in changed[_CORRECTION].items() if v != default[_CORRECTION][k]}
        changed[_CORRECTION] = passes
    if changed:
        write_json(folder / SAMPLING_FILE, changed)
    else:
        (folder / SAMPLING_FILE).unlink(missing_ok=True)


def read_sampling(folder: Path) -> SamplingOptions:
    """Return the options that a model folder recommends, or the defaults of the library."""
    path = folder / SAMPLING_FILE
    if not path.exists():
        return SamplingOptions()
    values = asdict(SamplingOptions()) | read_json(path, _REMEDY, CheckpointError)
    if isinstance(passes := values[_CORRECTION], dict):
        values[_CORRECTION] = asdict(SamplingOptions().self_correction) | passes
    try:
        options = from_plain(SamplingOptions, values, str(path), has_kinds=False)
    except ConfigError as error:
        raise CheckpointError(f"{error} {_REMEDY}") from error
    if problems := list(problems_of(options)):
        raise CheckpointError("\n".join(f"{path}: {problem} {_REMEDY}" for problem in problems))
    return options


def recommended_sampling(name: str) -> SamplingOptions:
    """Return the options that a model recommends, local or on the hub, before it is loaded."""
    if (folder := local_model(name)) is not None:
        return read_sampling(folder)
    try:
        hub = optional_package("huggingface_hub", "hf")
        return read_sampling(Path(hub.hf_hub_download(name, SAMPLING_FILE)).parent)
    except CheckpointError:
        raise
    except Exception:  # without this file, or the whole model: loading it says so
        return SamplingOptions()
