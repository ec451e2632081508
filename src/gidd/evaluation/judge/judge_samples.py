"""Samples to grade: JSON lines, as `gidd sample --jsonl` and `gidd correct --jsonl` print them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from gidd.common.files import file_kind
from gidd.errors import DataError
from gidd.evaluation.samples.sample_files import WRITE_SAMPLES, json_objects, text_field

_MAX_ID = 200


class JudgedSample(NamedTuple):
    """A sample, and the same sample after correction if there is one."""

    id: int | str
    before: str
    after: str | None = None


def read_samples(before: Path, after: Path | None = None) -> list[JudgedSample]:
    """Read samples, line by line: `text`, and `id` if there is one (otherwise the line index).

    With a second file, line i of both files is the same sample before and after. In a single file,
    lines with `original` are corrections: that is the text before, `text` the one after.
    """
    rows = list(_rows(before))
    if after is None:
        samples = [_single(row, where) for row, where in rows]
        if len({sample.after is None for sample in samples}) > 1:
            raise DataError(
                f"{before}: either all lines or none must have `original`, the text before "
                "correction. Split the file."
            )
    else:
        others = list(_rows(after))
        if len(rows) != len(others):
            raise DataError(
                f"{before} and {after} must have the same samples line by line, got {len(rows)} "
                f"and {len(others)} lines. Correct every sample of the first file."
            )
        samples = [_pair(*first, *second) for first, second in zip(rows, others, strict=True)]
    samples = [s._replace(id=i) if s.id == "" else s for i, s in enumerate(samples)]
    if not samples:
        raise DataError(f"{before} has no samples. Write some with `gidd sample MODEL --jsonl`.")
    if len({sample.id for sample in samples}) < len(samples):
        raise DataError(f"{before}: every `id` must be unique. Rename or remove the repeated ones.")
    return samples


def _single(row: dict[str, Any], where: str) -> JudgedSample:
    text = text_field(row, "text", where)
    if "original" in row:
        return JudgedSample(_id(row, where), text_field(row, "original", where), text)
    return JudgedSample(_id(row, where), text)


def _pair(first: dict[str, Any], place: str, second: dict[str, Any], other: str) -> JudgedSample:
    ids = _id(first, place), _id(second, other)
    if "" not in ids and ids[0] != ids[1]:
        raise DataError(f"{place} and {other} must have the same `id`: they are compared.")
    found = ids[0] if ids[0] != "" else ids[1]
    return JudgedSample(found, text_field(first, "text", place), text_field(second, "text", other))


def _rows(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    if not path.is_file():
        what = file_kind(path) if path.exists() else "nothing of that name"
        raise DataError(
            f"{path} must be a file with a JSON object per line, got {what}. {WRITE_SAMPLES}"
        )
    return json_objects(path)


def _id(row: dict[str, Any], where: str) -> int | str:
    """Return the id of a row, empty if it has none."""
    value = row.get("id", "")
    is_valid = isinstance(value, int | str) and not isinstance(value, bool)
    if not is_valid or len(str(value)) > _MAX_ID:
        raise DataError(
            f"{where}: `id` must be an integer or a string of at most {_MAX_ID} characters."
        )
    return cast("int | str", value)
