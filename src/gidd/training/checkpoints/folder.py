"""One checkpoint on disk: a folder whose manifest tells what every other file must be.

    step-000000123/
        shard-00001-model-00001-of-00001.safetensors   one or more for every rank
        record.json                                    numbers and strings of the run
        run.yaml, ...                                  what the caller wants beside it
        manifest.json                                  tensors; size and SHA-256 of all files above

Nothing here knows about ranks, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError

from gidd.common.files import sha256, write_text
from gidd.errors import CheckpointError, ConfigError
from gidd.training.checkpoints.tensors import lacking

MANIFEST = "manifest.json"
RECORD = "record.json"
SHARD = ".safetensors"
"""How the names of the files with tensors end."""

FORMAT = 1
"""Of the folder's layout; a reader refuses a number that it does not know."""

PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Names of files in a checkpoint: no folders, nothing hidden, no way out."""


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest:
    """What a checkpoint must consist of."""

    step: int
    tensors: Mapping[str, str]
    """Type and shape of every tensor, as `describe` words them."""

    files: Mapping[str, Mapping[str, Any]]
    """Size and SHA-256 of every other file, as `entry` returns them."""


def folder_name(step: int) -> str:
    """Name of a whole checkpoint's folder."""
    return f"step-{step:09d}"


def steps_in(folder: Path) -> list[int]:
    """Steps of the whole checkpoints in a folder, in order."""
    names = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    steps = [int(name[5:]) for name in names if re.fullmatch(r"step-[0-9]{9,}", name)]
    return sorted(step for step in steps if folder_name(step) in names)


def checked_texts(record: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, str]:
    """All files of a checkpoint but its tensors and its manifest.

    Args:
        record: What JSON can hold; numbers come back to the bit.
        files: Texts by file name.
    """
    for name in files:
        reserved = name in (MANIFEST, RECORD) or name.endswith(SHARD)
        if reserved or not PLAIN_NAME.fullmatch(name):
            raise ConfigError(
                f"no file of a checkpoint can be called {name!r}. Use letters, digits, '.', '_' "
                f"and '-', but not {MANIFEST}, {RECORD} or *{SHARD}."
            )
    try:
        text = json.dumps(dict(record), indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{RECORD}: only numbers, strings, lists and dictionaries can be saved, and no NaN or "
            f"infinity ({error}). Convert the values to plain ones."
        ) from error
    return {RECORD: text + "\n", **files}


def entry(path: Path) -> dict[str, Any]:
    """What the manifest says about a file, once the file has been forced to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Write the file that makes a folder a checkpoint; all its other files are there already."""
    write_text(folder / MANIFEST, _render(manifest))


def read_manifest(folder: Path, step: int) -> CheckpointManifest:
    """The manifest of a checkpoint of a certain step, every byte as it was written."""
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    try:
        content: dict[str, Any] = json.loads(data)["content"]
        manifest = CheckpointManifest(
            step=content["step"], tensors=dict(content["tensors"]), files=dict(content["files"])
        )
        # also what JSON does not mind, such as one more space, is not what was written
        if _render(manifest).encode() != data:
            raise ValueError
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not what was written") from error
    if manifest.step != step:
        raise CheckpointError(f"{path} is of step {manifest.step}")
    return manifest


def _render(manifest: CheckpointManifest) -> str:
    """The text of a manifest, with a digest of itself."""
    content = {
        "format": FORMAT,
        "step": manifest.step,
        "tensors": manifest.tensors,
        "files": manifest.files,
    }
    body = json.dumps(content, indent=1, sort_keys=True)
    digest = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps({"sha256": digest, "content": content}, indent=1, sort_keys=True) + "\n"


def visible(folder: Path) -> set[str]:
    """Names of the files in a folder, without what systems hide in any (`.DS_Store`, `.nfs...`)."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def missing_tensors(folder: Path, tensors: Mapping[str, str], files: Iterable[str]) -> str | None:
    """What the files of a folder lack of the tensors they should hold; None if nothing.

    Args:
        folder: The checkpoint, also one that is being written.
        tensors: Type and shape of every tensor.
        files: Names of its files.
    """
    shards = [folder / name for name in sorted(files) if name.endswith(SHARD)]
    try:
        lacks = lacking(shards, tensors)
    except (OSError, SafetensorError, ValueError) as error:
        return f"{folder} holds tensors that cannot be read: {error}"
    shown = ", ".join(lacks[:5]) + (", ..." if len(lacks) > 5 else "")
    return f"{folder} does not hold all of {shown}" if lacks else None


def damage(folder: Path, step: int, part: int, parts: int) -> list[str]:
    """Everything in a checkpoint that is not what was written, each with the name of its file.

    Args:
        folder: The checkpoint.
        step: The step that its name promises.
        part: Which share of the files to look into; the names of all are compared in any case,
            and the first share includes whether all of them together hold every tensor.
        parts: Number of shares.
    """
    try:
        manifest = read_manifest(folder, step)
        there = visible(folder) - {MANIFEST}
    except (CheckpointError, OSError) as error:
        return [str(error)]
    unsafe = [name for name in manifest.files if not PLAIN_NAME.fullmatch(name)]
    if unsafe:
        return [f"{folder / MANIFEST} names {name!r}, no plain file name" for name in unsafe]
    found = [f"{folder / name} is missing" for name in manifest.files.keys() - there]
    found += [
        f"{folder / name} is not part of the checkpoint" for name in there - set(manifest.files)
    ]
    for name in sorted(there & manifest.files.keys())[part::parts]:
        reason = _difference(folder / name, manifest.files[name])
        found += [f"{folder / name} {reason}"] if reason else []
    if part == 0 and not found:  # else the reason is known
        reason = missing_tensors(folder, manifest.tensors, manifest.files)
        found += [reason] if reason else []
    return sorted(found)


def _difference(path: Path, expected: Mapping[str, Any]) -> str | None:
    try:
        if path.is_symlink() or not path.is_file():
            return "is not a plain file"
        size = path.stat().st_size
        if size != expected.get("bytes"):
            return f"has {size} bytes instead of {expected.get('bytes')}"
        return None if sha256(path) == expected.get("sha256") else "has another SHA-256"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a checkpoint that was found to be whole."""
    return cast("dict[str, Any]", json.loads((folder / RECORD).read_bytes()))
