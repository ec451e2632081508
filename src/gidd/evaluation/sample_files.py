"""Samples of any system in files: JSON lines with a `text`, or one text file per sample."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from gidd.common.files import DOCUMENT_BYTES, file_kind, parse_json, read_regular
from gidd.common.terminal import shorten
from gidd.errors import DataError

_JSON_LINES = (".jsonl", ".ndjson")
_MODEL_FILES = ("gidd.json", "config.json")
WRITE_SAMPLES = "Write one with `gidd sample MODEL --num-samples 100 --jsonl > samples.jsonl`."


class TextSample(NamedTuple):
    """A sample as it is measured."""

    text: str
    tokens: tuple[int, ...] | None = None
    """Tokens of the system that generated it, up to end-of-text; None if they are not known."""
    self_accuracy: float | None = None
    """Fraction of tokens that are the most likely ones under the model itself (Sec. 5.4)."""
    forward_passes: int | None = None  # forward passes of the sampler


def has_samples(path: Path) -> bool:
    """Whether a path is a file, or a folder of text files that is not a model."""
    if path.is_dir() and not any((path / name).is_file() for name in _MODEL_FILES):
        return any(path.glob("*.txt"))
    return path.is_file()


def read_text_samples(path: Path) -> list[TextSample]:
    """Read the samples of a .jsonl file, one .txt file, or all .txt files of a folder by name."""
    if path.is_dir():
        samples = [_text_file(file) for file in sorted(path.glob("*.txt"))]
    elif path.is_file() and path.suffix.lower() in _JSON_LINES:
        samples = [_sample(row, place) for row, place in json_objects(path)]
    elif path.is_file() and path.suffix.lower() == ".txt":
        samples = [_text_file(path)]
    else:
        kind = file_kind(path) if path.exists() else "nothing of that name"
        raise DataError(
            f"{path} must be a .jsonl or .txt file, or a folder of .txt files, got {kind}."
        )
    if not samples:
        raise DataError(f"{path} has no samples. {WRITE_SAMPLES}")
    return samples


def _text_file(path: Path) -> TextSample:
    try:
        return TextSample(read_regular(path, DataError, DOCUMENT_BYTES).decode())
    except UnicodeDecodeError as error:
        raise DataError(f"{path} must be UTF-8 text: byte {error.start} is not.") from error


def json_objects(path: Path, fix: str = WRITE_SAMPLES) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the objects of a file with one per line, and their places; skip empty lines."""
    longest = DOCUMENT_BYTES.value
    with path.open("rb") as file:
        for line_number, line in enumerate(iter(lambda: file.readline(longest + 1), b""), start=1):
            place = f"{path}, line {line_number}"
            DOCUMENT_BYTES.require(len(line), place, DataError)
            if not line.strip():
                continue
            try:
                row = parse_json(line, place)
            except ValueError as error:
                raise DataError(f"{place} is not JSON: {error}. {fix}") from error
            if not isinstance(row, dict):
                raise DataError(f"{place} must be a JSON object, got {shorten(row)}. {fix}")
            yield cast("dict[str, Any]", row), place


def text_field(row: dict[str, Any], name: str, place: str) -> str:
    """Return a field that must be text."""
    text = row.get(name)
    if not isinstance(text, str):
        raise DataError(f"{place}: the field `{name}` must be a string. {WRITE_SAMPLES}")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise DataError(f"{place}: `{name}` must be Unicode text, got half of a surrogate pair.")
    return text


def _sample(row: dict[str, Any], place: str) -> TextSample:
    text = text_field(row, "text", place)
    tokens: list[Any] | None = row.get("tokens")
    if type(tokens) not in (list, type(None)) or any(
        type(token) is not int for token in tokens or ()
    ):
        raise DataError(f"{place}: `tokens` must be a list of integers, or left out.")
    passes = row.get("forward_passes", row.get("calls"))
    passes = passes if type(passes) is int else None
    return TextSample(text, None if tokens is None else tuple(tokens), forward_passes=passes)
