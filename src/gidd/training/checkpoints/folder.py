"""Checkpoints on disk: folders with a manifest of their files, renamed when complete.

step-000000123/
    shard-00001-model-00001-of-00001.safetensors   one or more per rank
    record.json                                    JSON values of the run, e.g. its step
    run.yaml, ...                                  text files of the caller
    manifest.json                                  tensors; size and SHA-256 of all files above
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from gidd.common.files import (
    MANIFEST_BYTES,
    TEMPORARY,
    explain_damage,
    file_lock,
    fsync,
    parse_json,
    read_json,
    read_regular,
    sha256,
    write_text,
)
from gidd.errors import CheckpointError, ConfigError
from gidd.training.checkpoints.tensors import incomplete_tensors

MANIFEST = "manifest.json"
RECORD = "record.json"
SHARD = ".safetensors"  # suffix of the files with tensors
FORMAT = 1  # version of the folder's layout; other versions are refused
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""File names allowed in a checkpoint: no folders, no hidden files, no path outside."""

_STEP_NAME = re.compile(r"step-[0-9]{9,12}")
_TENSOR = re.compile(r"\w+ \[(\d{1,15}(, \d{1,15})*)?\]", re.ASCII)
"""Dtype and shape of a tensor, as formatted by `describe`."""

TRASH = ".trash-"  # prefix of checkpoints that are being deleted
LOCK = "lock"  # file that is locked by the run that writes to the folder
_REMEDY = "Copy the checkpoint from a backup, or use another folder to start a new run."


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest:
    """The content of a checkpoint."""

    step: int
    tensors: Mapping[str, str]
    """Dtype and shape of every tensor, as formatted by `describe`."""
    files: Mapping[str, Mapping[str, Any]]
    """Size and SHA-256 of every other file, as returned by `entry`."""


def folder_name(step: int) -> str:
    """Return the name of a complete checkpoint's folder."""
    return f"step-{step:09d}"


def steps_in(folder: Path) -> list[int]:
    """Return the steps of the visible checkpoints in a folder, in ascending order."""
    names = [path.name for path in folder.glob("step-*") if path.is_dir()]
    steps = [int(name[5:]) for name in names if _STEP_NAME.fullmatch(name)]
    return sorted(step for step in steps if folder_name(step) in names)


def render_texts(record: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, str]:
    """Return the text files of a checkpoint, except its manifest; raise if a name is wrong."""
    for name in files:
        reserved = name in (MANIFEST, RECORD) or name.endswith(SHARD)
        if reserved or not PLAIN_NAME.fullmatch(name):
            raise ConfigError(
                f"files: {name!r} is not allowed as the name of a file in a checkpoint. Use "
                f"letters, digits, '.', '_' and '-', but not {MANIFEST}, {RECORD} or *{SHARD}."
            )
    try:
        text = json.dumps(dict(record), indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        problem = "only finite numbers, strings, lists and dictionaries can be saved"
        raise ConfigError(f"{RECORD}: {problem} ({error}).") from error
    return {RECORD: text + "\n", **files}


def entry(path: Path) -> dict[str, Any]:
    """Sync a file to disk and return its size and SHA-256 for the manifest."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Write the manifest, as the last file of a checkpoint."""
    write_text(folder / MANIFEST, _render(manifest))


def read_manifest(folder: Path, step: int) -> CheckpointManifest:
    """Return the manifest of a step's checkpoint; raise unless it is as written."""
    path = folder / MANIFEST
    try:
        data = read_regular(path, CheckpointError, MANIFEST_BYTES)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    try:
        manifest = _manifest_from(parse_json(data, str(path)))
        # comparing bytes also finds changes that JSON ignores, such as a space or the key order;
        # a digest of the parsed content alone would not
        if _render(manifest).encode() != data:
            raise ValueError
    except ConfigError as error:  # more values than allowed
        raise CheckpointError(str(error)) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged") from error
    if manifest.step != step:
        raise CheckpointError(f"{path} belongs to step {manifest.step}")
    return manifest


def _manifest_from(parsed: Any) -> CheckpointManifest:
    """Build a manifest from its JSON; raise any exception unless every value has its type."""
    content = parsed["content"]
    step, tensors, files = content["step"], dict(content["tensors"]), dict(content["files"])
    are_valid = [
        type(step) is int and step >= 0,
        *(_TENSOR.fullmatch(text) is not None for text in tensors.values()),
        *(type(file["bytes"]) is int for file in files.values()),
        *(type(file["sha256"]) is str for file in files.values()),
    ]
    if not all(are_valid):
        raise ValueError
    return CheckpointManifest(step=step, tensors=tensors, files=files)


def _render(manifest: CheckpointManifest) -> str:
    content = {"format": FORMAT, **vars(manifest)}
    body = json.dumps(content, indent=1, sort_keys=True)
    digest = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps({"sha256": digest, "content": content}, indent=1, sort_keys=True) + "\n"


def visible(folder: Path) -> set[str]:
    """Return the names of the files in a folder, without hidden ones (`.DS_Store`, `.nfs...`)."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def missing_tensors(folder: Path, tensors: Mapping[str, str], files: Iterable[str]) -> str | None:
    """Return a message that names the tensors missing from the files; None if all are complete."""
    shards = [folder / name for name in sorted(files) if name.endswith(SHARD)]
    try:
        with explain_damage(f"{folder}: a file with tensors", _REMEDY, CheckpointError):
            names = incomplete_tensors(shards, tensors)
    except CheckpointError as error:
        return str(error)
    return f"{folder} does not hold all of {abbreviate(names, ', ')}" if names else None


def abbreviate(parts: list[str], separator: str = "; ") -> str:
    """Join the first five parts for a message."""
    return separator.join([*parts[:5], "..."] if len(parts) > 5 else parts)


def damage(folder: Path, step: int, part: int, parts: int) -> list[str]:
    """Return all differences between a checkpoint and its manifest, each with its file's name.

    Only every `parts`-th file is read, from `part` on; part 0 also looks for missing tensors.
    """
    try:
        manifest = read_manifest(folder, step)
        present = visible(folder) - {MANIFEST}
    except (CheckpointError, OSError) as error:
        return [str(error)]
    unsafe = [name for name in manifest.files if not PLAIN_NAME.fullmatch(name)]
    if unsafe:
        return [f"{folder / MANIFEST} names {name!r}: not a plain file name" for name in unsafe]
    problems = [f"{folder / name} is missing" for name in manifest.files.keys() - present]
    extra = present - manifest.files.keys()
    problems += [f"{folder / name} is not part of the checkpoint" for name in extra]
    for name in sorted(present & manifest.files.keys())[part::parts]:
        reason = _mismatch(folder / name, manifest.files[name])
        problems += [f"{folder / name} {reason}"] if reason else []
    if part == 0 and not problems:
        reason = missing_tensors(folder, manifest.tensors, manifest.files)
        problems += [reason] if reason else []
    return sorted(problems)


def _mismatch(path: Path, expected: Mapping[str, Any]) -> str | None:
    try:
        if path.is_symlink() or not path.is_file():
            return "is not a plain file"
        size = path.stat().st_size
        if size != expected.get("bytes"):
            return f"has {size} bytes instead of {expected.get('bytes')}"
        return None if sha256(path) == expected.get("sha256") else "has a different SHA-256"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def read_record(folder: Path) -> dict[str, Any]:
    """Read the record of a valid checkpoint."""
    return read_json(folder / RECORD, _REMEDY, CheckpointError)


@final
@dataclass(frozen=True, kw_only=True)
class CheckpointDirectory:
    """All checkpoints of a run; only rank 0 changes it. `keep` is as in `TrainConfig`."""

    folder: Path
    keep: int
    keep_every: int | None

    def path(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step."""
        return self.folder / folder_name(step)

    def temporary(self, step: int) -> Path:
        """Return the temporary folder that the checkpoint of a step is written to."""
        return self.folder / f".{folder_name(step)}{TEMPORARY}"

    @contextmanager
    def lock(self) -> Generator[None]:
        """Lock the folder against other runs, and delete temporary folders of killed runs."""
        problem = f"{self.folder} is being written by another run"
        busy = CheckpointError(f"{problem}. Wait for it or stop it, or use another folder.")
        with ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(file_lock(self.folder / LOCK, busy))
            except OSError as error:
                problem = f"{self.folder} cannot be written: {error.strerror}"
                raise CheckpointError(f"{problem}. Choose a writable folder with --out.") from error
            for path in self.folder.glob(f".step-*{TEMPORARY}"):
                shutil.rmtree(path, ignore_errors=True)
            self._empty_trash()
            yield

    def begin(self, step: int) -> None:
        """Create an empty temporary folder."""
        shutil.rmtree(self.temporary(step), ignore_errors=True)
        self.temporary(step).mkdir(parents=True)

    def commit(
        self,
        step: int,
        tensors: Mapping[str, str],
        shards: Mapping[str, Mapping[str, Any]],
        texts: Mapping[str, str],
    ) -> None:
        """Complete the temporary folder that all ranks wrote to, and make it visible.

        `tensors` and `shards` (the files of all ranks) are for the manifest; `texts` are written.
        """
        temporary = self.temporary(step)
        for name, text in texts.items():
            write_text(temporary / name, text)
        files = {**shards, **{name: entry(temporary / name) for name in texts}}
        present = visible(temporary)
        if other := ", ".join(sorted(present ^ files.keys())):
            raise CheckpointError(
                f"{temporary} must hold the files of all ranks, but differs in {other}. Use a disk "
                "that all ranks share"
            )
        if missing := missing_tensors(temporary, tensors, files):
            raise CheckpointError(f"{missing}; another process may have deleted files there")
        # written last: it also syncs the folder, and with it the names of all files
        write_manifest(temporary, CheckpointManifest(step=step, tensors=tensors, files=files))
        if self.path(step).exists():  # damaged, or of a run that this one did not resume
            self._hide([step])
        temporary.rename(self.path(step))
        fsync(self.folder)

    def expire(self, newest: int, damaged: Collection[int]) -> None:
        """Delete checkpoints that are not to be kept now that `newest` is visible.

        Later steps are not touched: they belong to a run that this one did not resume.
        """
        old = [step for step in steps_in(self.folder) if step <= newest]
        valid = [step for step in old if step not in damaged]
        every = self.keep_every
        kept = {*valid[-self.keep :], *(step for step in valid if every and step % every == 0)}
        self._hide([step for step in old if step not in kept])
        self._empty_trash()

    def _hide(self, steps: list[int]) -> None:
        """Rename checkpoints before they are deleted, so that none is ever visible in part."""
        for step in steps:
            name = f"{TRASH}{folder_name(step)}-{uuid.uuid4().hex[:12]}"
            self.path(step).rename(self.folder / name)
        if steps:
            fsync(self.folder)

    def _empty_trash(self) -> None:
        """Delete hidden checkpoints; files still in use are deleted the next time."""
        for path in self.folder.glob(f"{TRASH}*"):
            shutil.rmtree(path, ignore_errors=True)
