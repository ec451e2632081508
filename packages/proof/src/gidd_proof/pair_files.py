"""Files with pairs of wrong and right text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from gidd.common.files import parse_json, read_regular
from gidd.common.limits import DOCUMENT_BYTES
from gidd.common.terminal import shorten
from gidd.errors import DataError

_REMEDY = (
    "Write wrong<TAB>right on each line, or lines of JSON with the keys wrong and right to a file "
    "that ends in .jsonl."
)


def read_pairs(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (wrong, right) of each line; empty lines are skipped."""
    if not path.exists():
        raise DataError(f"{path} does not exist. Name a file with pairs. {_REMEDY}")
    try:
        text = read_regular(path, DataError, DOCUMENT_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} must be UTF-8 text: {error}. {_REMEDY}") from error
    is_json = path.suffix in (".jsonl", ".ndjson")
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if line.strip():
            where = f"{path}, line {number},"
            yield _json_pair(line, where) if is_json else _tabbed_pair(line, where)


def _tabbed_pair(line: str, where: str) -> tuple[str, str]:
    parts = line.split("\t")
    if len(parts) != 2:
        raise DataError(
            f"{where} must have two texts with a tab between them, got {shorten(line)}. {_REMEDY}"
        )
    return parts[0], parts[1]


def _json_pair(line: str, where: str) -> tuple[str, str]:
    try:
        value = parse_json(line.encode(), where)
    except ValueError as error:
        raise DataError(f"{where} cannot be read as JSON: {error}. {_REMEDY}") from error
    record = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    wrong, right = record.get("wrong"), record.get("right")
    if not isinstance(wrong, str) or not isinstance(right, str):
        raise DataError(
            f"{where} must have the texts wrong and right, got {shorten(value)}. {_REMEDY}"
        )
    return wrong, right
