"""A folder of samples, written block by block.

    manifest.json                       settings that decide every sample, and their number
    samples/00000000-00000064.jsonl     a block: one line per sample

A block is written atomically, at a path that depends only on its indices: whatever is interrupted
or repeated, no sample is written twice. A line is {"id", "text", "tokens", "calls", "sha256"}; the
checksum covers the line and the settings, so that damaged blocks and those of other settings are
recognized.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast, final

from gidd.common.allowed import SEED, Allowed, integer
from gidd.common.files import (
    TEMPORARY,
    atomic_write,
    file_lock,
    parse_json,
    read_json,
    read_regular,
    remove_leftovers,
    write_json,
)
from gidd.common.limits import RESULT_BYTES
from gidd.common.terminal import shorten
from gidd.errors import ConfigError, DataError

SAMPLES_MANIFEST, BLOCKS_FOLDER = "manifest.json", "samples"
BLOCK_SIZE = integer(1, 65_536)
_FORMAT = "gidd samples 1"
_LOCK = ".lock"
"""File that the process which writes a folder has locked."""

_RESUME = "Run the command that writes the folder again: it samples what is missing."
_REMEDY = "Name a folder written by `gidd sample --out`, or sample again into another one."


class BulkSample(NamedTuple):
    """One sample of a folder."""

    id: int
    """Its sample index: with the settings, it determines the sample."""

    text: str
    tokens: tuple[int, ...]
    """Tokens of the text, up to end-of-text."""

    calls: int
    """Forward passes of the sampler."""


@final
@dataclass(frozen=True)
class SampleFolder:
    """The samples `start_index` .. `start_index + num_samples - 1` of some settings."""

    path: Path
    settings: Mapping[str, Any]
    """Plain data; has `start_index` and `block_size`."""

    num_samples: int

    about: Mapping[str, Any] = field(default_factory=lambda: {})
    """Plain data that does not decide samples, such as the name of the model."""

    @classmethod
    def read(cls, path: str | Path) -> SampleFolder:
        """Read the manifest of a folder; `DataError` if it has none or it is invalid."""
        file = Path(path) / SAMPLES_MANIFEST
        if not file.exists():
            raise DataError(f"{path} has no {SAMPLES_MANIFEST}. {_REMEDY}")
        plain = read_json(file, _REMEDY, DataError)
        if plain.get("format") != _FORMAT:
            got = shorten(plain.get("format"))
            raise DataError(f"{file}: format must be {_FORMAT!r}, got {got}. {_REMEDY}")
        settings: Any = plain.get("settings")
        if not isinstance(settings, dict):
            raise DataError(f"{file}: settings must be an object. {_REMEDY}")
        numbers = {"num_samples": (plain, integer(1)), "start_index": (settings, SEED)}
        for name, (holder, allowed) in (numbers | {"block_size": (settings, BLOCK_SIZE)}).items():
            _require(allowed, f"{file}: {name}", cast("dict[str, Any]", holder).get(name))
        about: Any = plain.get("about")
        about = cast("dict[str, Any]", about) if isinstance(about, dict) else {}
        return cls(Path(path), cast("dict[str, Any]", settings), plain["num_samples"], about)

    def write_manifest(self) -> None:
        """Write the settings and the number of samples."""
        names = ("num_samples", "about", "settings")
        plain = {"format": _FORMAT} | {name: getattr(self, name) for name in names}
        write_json(self.path / SAMPLES_MANIFEST, plain)
        (self.path / BLOCKS_FOLDER).mkdir(exist_ok=True)  # not before the manifest

    @property
    def blocks(self) -> Iterator[range]:
        """The sample indices of each block."""
        first, size = self.settings["start_index"], self.settings["block_size"]
        stop = first + self.num_samples
        return (range(i, min(i + size, stop)) for i in range(first, stop, size))

    def block_path(self, block: range) -> Path:
        """Return the file of a block, named by its first index and the one after its last."""
        return self.path / BLOCKS_FOLDER / f"{block.start:08d}-{block.stop:08d}.jsonl"

    def write_block(self, samples: Sequence[BulkSample]) -> None:
        """Write the samples of a block, atomically."""
        block = range(samples[0].id, samples[-1].id + 1)
        with atomic_write(self.block_path(block)) as file:
            for sample in samples:
                fields = sample._asdict() | {"tokens": list(sample.tokens)}
                file.write(_dump(fields | {"sha256": self._checksum(fields)}) + b"\n")

    def read_block(self, block: range) -> list[BulkSample]:
        """Return the samples of a block; `DataError` if a line is missing, damaged or foreign."""
        path = self.block_path(block)
        if not path.exists():
            raise DataError(f"{path} is missing: sampling is not finished. {_RESUME}")
        lines = read_regular(path, DataError, RESULT_BYTES).split(b"\n")
        if len(lines) != len(block) + 1 or lines[-1]:
            raise _invalid(path, f"must have {len(block)} complete lines")
        return [
            self._parse(line, f"{path}, line {number}", index)
            for number, (line, index) in enumerate(zip(lines, block, strict=False), start=1)
        ]

    def unfinished(self) -> tuple[list[range], list[Path]]:
        """Return the blocks without a valid file, and those files that are invalid."""
        blocks: list[range] = []
        invalid: list[Path] = []
        for block in self.blocks:
            path = self.block_path(block)
            try:
                self.read_block(block)
            except DataError:
                blocks.append(block)
                invalid += [path] if path.exists() else []
        return blocks, invalid

    def _parse(self, line: bytes, where: str, index: int) -> BulkSample:
        try:
            plain: Any = parse_json(line, where)
            found = plain.pop("sha256")
            sample = BulkSample(**plain)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _invalid(
                where, "must be an object with id, text, tokens, calls, sha256"
            ) from error
        if found != self._checksum(plain):
            raise _invalid(where, "must have the checksum of its content and of the settings")
        if sample.id != index:
            raise _invalid(where, f"must have the id {index}, got {shorten(sample.id)}")
        if not _has_types(sample):
            raise _invalid(where, "must have a string as text and integers as tokens and calls")
        return sample._replace(tokens=tuple(sample.tokens))

    def _checksum(self, fields: dict[str, Any]) -> str:
        return hashlib.sha256(self._settings_digest + _dump(fields)).hexdigest()

    @cached_property
    def _settings_digest(self) -> bytes:
        text = json.dumps(self.settings, sort_keys=True)
        return hashlib.sha256(text.encode()).digest()


def iterate_samples(folder: str | Path) -> Iterator[BulkSample]:
    """Yield all samples of a finished folder in the order of their indices, a block at a time.

    Raises `DataError` if a block is missing, before the first sample, or is invalid.
    """
    opened = SampleFolder.read(folder)
    for block in opened.blocks:
        if not opened.block_path(block).exists():
            opened.read_block(block)  # raises
    for block in opened.blocks:
        yield from opened.read_block(block)


@contextmanager
def open_sample_folder(folder: SampleFolder) -> Generator[None]:
    """Lock a folder and write its manifest, or raise if it exists with other settings.

    The number of samples can be raised. Settings of a folder without any block can be changed.
    """
    path = folder.path
    names = {entry.name for entry in path.iterdir()} if path.exists() else set[str]()
    others = {name for name in names - {_LOCK} if not name.endswith(TEMPORARY)}
    if others and SAMPLES_MANIFEST not in names:
        raise ConfigError(
            f"{path} must be a new or empty folder, or one written by this command; it has other "
            f"files and no {SAMPLES_MANIFEST}. Name another folder."
        )
    path.mkdir(parents=True, exist_ok=True)
    busy = DataError(f"another process is sampling into {path}. Wait for it, or stop it.")
    with file_lock(path / _LOCK, busy):
        if any((path / BLOCKS_FOLDER).glob("*.jsonl")):
            before = SampleFolder.read(path)
            require_same_settings(before, folder.settings)
            if folder.num_samples < before.num_samples:
                raise ConfigError(
                    f"num_samples must be at least {before.num_samples:,} to resume {path}, got "
                    f"{folder.num_samples:,}: it can be raised, but not lowered. Name another "
                    "folder."
                )
        remove_leftovers(path)
        folder.write_manifest()
        for stale in _shorter_last_blocks(folder):
            stale.unlink(missing_ok=True)
        yield


def require_same_settings(folder: SampleFolder, settings: Mapping[str, Any]) -> None:
    """Raise `ConfigError` that names the settings in which a folder differs."""
    if found := list(_differences(folder.settings, settings)):
        lines = "\n".join(f"  {name}: {old}, now {new}" for name, old, new in found)
        raise ConfigError(
            f"{folder.path} has samples of other settings:\n{lines}\n"
            "Resume with the settings of the folder, or name another folder."
        )


def _shorter_last_blocks(folder: SampleFolder) -> Iterator[Path]:
    """Yield the files of incomplete last blocks, which are superseded once samples are added."""
    current = {folder.block_path(block).name for block in folder.blocks}
    starts = {name.partition("-")[0] for name in current}
    for path in (folder.path / BLOCKS_FOLDER).glob("*-*.jsonl"):
        if path.name not in current and path.name.partition("-")[0] in starts:
            yield path


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Yield name, old and new value of the settings that differ."""
    for name in dict.fromkeys([*old, *new]):
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            nested = cast("tuple[dict[str, Any], dict[str, Any]]", (a, b))
            yield from _differences(*nested, f"{prefix}{name}.")
        elif a != b:
            yield f"{prefix}{name}", shorten(a), shorten(b)


def _has_types(sample: BulkSample) -> bool:
    """Whether the values of a line have the types of a sample; a checksum is no proof of that."""
    tokens: object = sample.tokens
    return (
        isinstance(cast(object, sample.text), str)
        and isinstance(tokens, list)
        and all(map(SEED.contains, [*cast("list[object]", tokens), sample.calls]))
    )


def _require(allowed: Allowed, name: str, value: object) -> None:
    for problem in allowed.problems(name, value):
        raise DataError(f"{problem} {_REMEDY}")


def _invalid(where: object, rule: str) -> DataError:
    return DataError(f"{where} {rule}. Delete the file and run the command that wrote it again.")


def _dump(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, allow_nan=False).encode()
