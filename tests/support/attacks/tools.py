"""Tools to damage files: JSON at a path, safetensors headers, digests that fit the damage."""

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gidd.training.checkpoints.folder import MANIFEST, CheckpointManifest, entry, write_manifest

Attack = Callable[[Path], None]

ESCAPE = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202e[bold]"
"""A title, a cleared screen, C1 and bidirectional controls, and rich's markup."""

HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, 10**5, 10**9, 10**18, 10**30, 1e308, float("nan"), float("inf")),
    *("", "x", ESCAPE, "x" * 10**5, "../../../../etc/passwd", "/dev/zero", "os.system", "\ud800"),
    *([], [[]], {}, {"kind": "os.system"}, [1, 2, 3], {"a": {"b": [{}]}}),
)
"""Values that a field of a record may be replaced by."""


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in JSON data, of inner ones as well."""
    yield path
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        yield from leaves(value[key], (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return JSON data with another value at a path."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], new) if path[1:] else new
    return copy


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def edit_json(path: Path, keys: tuple[Any, ...], new: Any) -> None:
    """Replace one value of a JSON file."""
    write_json(path, put(json.loads(path.read_text()), keys, new))


def write_json(path: Path, value: Any) -> None:
    path.write_bytes(json.dumps(value).encode("utf-8", "surrogatepass"))


def nested(depth: int, kind: str = "[") -> str:
    return "[" * depth + "]" * depth if kind == "[" else '{"a":' * depth + "1" + "}" * depth


def replace(path: Path, data: bytes | str) -> None:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def become_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def become_link(path: Path, target: str | Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def read_tensors(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return the header of a safetensors file and the bytes after it."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def write_tensors(path: Path, header: Any, data: bytes, size: int | None = None) -> None:
    """Write a safetensors file, whatever its header says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + data)


def sign_model(folder: Path) -> None:
    """Make the digests of gidd.json fit its files, as an attacker would."""
    path = folder / "gidd.json"
    record = json.loads(path.read_text())
    for name in record["files"]:
        if (folder / name).is_file():
            record["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    write_json(path, record)


def sign_checkpoint(folder: Path) -> None:
    """Make the manifest of a checkpoint fit its files."""
    content = json.loads((folder / MANIFEST).read_text())["content"]
    files = {p.name: entry(p) for p in folder.iterdir() if p.is_file() and p.name != MANIFEST}
    (folder / MANIFEST).unlink()
    write_manifest(
        folder,
        CheckpointManifest(step=content["step"], tensors=content["tensors"], files=files),
    )
