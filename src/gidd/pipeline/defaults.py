"""What a model folder recommends, without torch: options, and texts to try.

`sampling.json` has options for sampling, `correction.json` those for correction, `examples.json`
texts; a model without them has the library's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, final

from gidd.common.config.allowed import problems_of
from gidd.common.config.codec import from_plain
from gidd.common.files import read_json, write_json
from gidd.common.local_models import local_model
from gidd.common.optional import optional_package
from gidd.errors import CheckpointError, ConfigError
from gidd.pipeline.options import CorrectionOptions, SamplingOptions

SAMPLING_FILE, CORRECTION_FILE = "sampling.json", "correction.json"
EXAMPLES_FILE = "examples.json"
_REMEDY = "Correct it or delete it: without it, the defaults of the library are used."
_CORRECTION = "self_correction"

_Options = TypeVar("_Options")


@final
@dataclass(frozen=True, kw_only=True)
class Examples:
    """Texts that show what a model does, for `gidd demo` and the page of the service."""

    prompt: str = "Once upon a time"
    """Beginning of a text."""
    blanks: str = "Once upon a time there was a[MASK:2] who lived in a[MASK]."
    """Text with blanks."""
    mistakes: str = "We walked to the park, but it begun to rain and we went back hme."
    """Text to correct."""


def write_defaults(
    folder: Path, sampling: SamplingOptions, correction: CorrectionOptions, examples: Examples
) -> None:
    """Write what differs from the defaults of the library; a file without values is removed."""
    pairs: dict[str, tuple[Any, Any]] = {
        SAMPLING_FILE: (sampling, SamplingOptions()),
        CORRECTION_FILE: (correction, CorrectionOptions()),
        EXAMPLES_FILE: (examples, Examples()),
    }
    for name, (options, default) in pairs.items():
        if values := _changed(asdict(options), asdict(default)):
            write_json(folder / name, values)
        else:
            (folder / name).unlink(missing_ok=True)


def _changed(values: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _changed(value, default[name]) if isinstance(value, dict) else value
        for name, value in values.items()
        if value != default[name]
    }


def read_sampling(folder: Path) -> SamplingOptions:
    """Return the options that a model folder recommends, or the defaults of the library."""
    return _read(folder / SAMPLING_FILE, SamplingOptions())


def read_correction(folder: Path) -> CorrectionOptions:
    """Return the options of corrections that a model folder recommends, or the library's."""
    return _read(folder / CORRECTION_FILE, CorrectionOptions())


def read_examples(folder: Path) -> Examples:
    """Return the texts that a model folder has, or those of the library."""
    return _read(folder / EXAMPLES_FILE, Examples())


def _read(path: Path, default: _Options) -> _Options:
    if not path.exists():
        return default
    plain: dict[str, Any] = asdict(default)  # type: ignore[call-overload]  # both are dataclasses
    values = plain | read_json(path, _REMEDY, CheckpointError)
    if isinstance(passes := values.get(_CORRECTION), dict):
        values[_CORRECTION] = plain[_CORRECTION] | passes
    try:
        options = from_plain(type(default), values, str(path), has_kinds=False)
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
