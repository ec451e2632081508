"""Prepared folders in object storage: ranges of their files, through a cache on the local disk.

A file of the cache has a range and its SHA-256, so that a damaged one is read again. All processes
of a machine share the folder; files that were not opened for the longest time are deleted. (The
caches of fsspec hold complete files, or have neither limit nor checksum, or belong to one process.)
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gidd.common.files import Limit, atomic_write, file_lock, write_text
from gidd.common.urls import is_url
from gidd.data.corpora.remote import connect
from gidd.errors import DataError

CACHE, CACHE_BYTES = "GIDD_CACHE", Limit(1 << 36, variable="GIDD_MAX_CACHE_BYTES")
"""Variable with the folder of the cache, and its largest size."""
_ATTEMPTS = 6
_SECONDS = 0.25  # doubled by each attempt: 15.5 seconds of pauses
_PERMANENT = (FileNotFoundError, PermissionError)
_COPIED = ("manifest.json", "tokenizer.json", "tokenizer_config.json")
_left = dict[Path, int]()  # bytes that this process may still write before it looks at the size
_valid = set[Path]()  # files that this process wrote or has compared with their checksum


def join(folder: str | Path, name: str) -> str:
    """Return the path or URL of a file of a folder."""
    return f"{str(folder).rstrip('/')}/{name}"


def local_folder(folder: str | Path) -> Path:
    """Return a local folder with manifest and tokenizer: of a URL, a copy of them."""
    if not is_url(str(folder)):
        return Path(folder)
    copy = _cache() / hashlib.sha256(str(folder).encode()).hexdigest()[:32]
    for name in _COPIED:
        write_text(copy / name, fetch(join(folder, name)).decode())
    return copy


def fetch(url: str, start: int | None = None, end: int | None = None) -> bytes:
    """Return a remote file, or a range of it; what fails is tried again after growing pauses."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with connect(url) as (system, path):
                data: bytes = system.cat_file(path, start=start, end=end)
                if start is not None and end is not None and len(data) != end - start:
                    raise OSError(f"got {len(data)} bytes of {start} to {end}")
                return data
        except DataError as error:
            if isinstance(error.__context__, _PERMANENT):
                raise
            if attempt == _ATTEMPTS:
                raise DataError(f"{error} This was attempt {attempt} of {_ATTEMPTS}.") from None
        time.sleep(_SECONDS * 2**attempt)
    raise AssertionError


@dataclass(frozen=True, eq=False)
class RemoteFile:
    """The integers of a remote file."""

    url: str
    sha256: str
    dtype: np.dtype[Any]
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> NDArray[Any]:
        start, end, _ = part.indices(self.length)
        return self.read(start, end)[:]

    def read(self, start: int, end: int) -> RemoteRange:
        """Read a part into the cache and return it."""
        part = RemoteRange(self, start, end)
        part.cached()
        return part


@dataclass(frozen=True, eq=False)
class RemoteRange:
    """Integers of a remote file that are read at once."""

    file: RemoteFile
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the integers."""
        return self.file.dtype

    def __getitem__(self, part: slice) -> NDArray[Any]:
        return _map(self)[part]

    def cached(self) -> Path:
        """Return the file of the cache, which begins with these integers."""
        size, folder = self.dtype.itemsize, _cache()
        start, end = self.start * size, self.end * size
        name = hashlib.sha256(f"{self.file.sha256} {start} {end}".encode()).hexdigest()
        path = folder / name
        if path not in _valid or not path.exists():
            busy = DataError(f"{folder}: another process has locked {name[:2]}.lock for an hour.")
            with file_lock(folder / f"{name[:2]}.lock", busy, seconds=3600):
                if not _is_valid(path):
                    _write(path, fetch(self.file.url, start, end) if end > start else b"")
            _valid.add(path)
        os.utime(path)
        return path


@lru_cache(maxsize=256)
def _map(part: RemoteRange) -> NDArray[Any]:
    if not len(part):
        return np.zeros(0, part.dtype)
    while True:
        with suppress(FileNotFoundError):  # deleted by another process, to make space
            mapped = np.memmap(part.cached(), part.dtype, mode="r", shape=(len(part),))
            return mapped.view(np.ndarray)


def _cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get(CACHE) or Path(cache) / "gidd")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _is_valid(path: Path) -> bool:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(data[:-32]).digest() == data[-32:]


def _write(path: Path, data: bytes) -> None:
    """Write a file of the cache, and delete old ones if all together may be too large."""
    try:
        with atomic_write(path) as file:
            file.write(data)
            file.write(hashlib.sha256(data).digest())
    except OSError as error:
        raise DataError(
            f"{path.parent}: {error.strerror}. Set {CACHE} to a folder of a disk with more space, "
            f"or {CACHE_BYTES.variable} to fewer bytes."
        ) from error
    folder, limit = path.parent, CACHE_BYTES.value
    _left[folder] = _left.get(folder, 0) - len(data)
    if _left[folder] >= 0:
        return
    with os.scandir(folder) as entries:
        files = [(entry.stat(), entry.path) for entry in entries if not entry.is_dir()]
    files.sort(key=lambda file: file[0].st_mtime_ns)
    size = sum(status.st_size for status, _ in files)
    for status, name in files:
        if size <= limit * 3 // 4:
            break
        Path(name).unlink(missing_ok=True)
        size -= status.st_size
    _left[folder] = limit // 64  # up to 16 processes write, before they look again
