"""Remote files: any URL that `fsspec` supports (https://, s3://, gs://, hf://, file://, ...).

References to credentials are replaced when a URL is opened; credentials are never recorded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from io import BufferedReader
from typing import Any

from gidd.common.optional import optional_package
from gidd.common.urls import expand_secrets, hide_secrets, restore_references, without_credentials
from gidd.errors import DataError, GiddError

SECONDS_TO_CONNECT = 30
SECONDS_OF_SILENCE = 60  # longest wait for the next bytes; the complete download may take any time
_BLOCK = 1 << 20
_VERSION = (
    *("ETag", "etag", "Content-MD5", "md5Hash", "blob_id", "VersionId", "generation"),
    *("Last-Modified", "LastModified", "last_modified", "mtime", "updated"),
)
"""Names, in different file systems, of the fields that change when a file changes."""

PACKAGES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "gcs": ("gcsfs", "gcs")}
"""Packages of object storage, and the extras that install them."""

_REMEDY = (
    "Check the URL, the connection and the credentials (the environment variables or settings of "
    "the file system); then run the same command again."
)


def list_files(url: str, endings: tuple[str, ...]) -> list[str]:
    """Return the files with these endings of a URL: of a file, a folder, or a pattern with `*`."""
    place = without_credentials(url)
    with connect(url) as (system, path):
        if "*" in place:
            paths = system.glob(path)
        elif place.endswith(endings):
            return [url]
        else:
            paths = system.find(path)
        files = restore_references(map(system.unstrip_protocol, paths), url)
    files = [file for file in files if without_credentials(file).endswith(endings)]
    if not files:
        raise DataError(
            f"{place} has no documents: no file name ends in {', '.join(endings)}, or the server "
            "does not list its files. Check the URL, or name each file."
        )
    return sorted(files, key=lambda file: file.split("/"))


def stamp(url: str) -> list[int]:
    """Return the size in bytes (-1 if unknown) and a number that changes with the file."""
    with connect(url) as (system, path):
        about = system.info(path)
    return make_stamp(about.get("size"), [about.get(field) for field in _VERSION])


def make_stamp(size: int | None, version: object) -> list[int]:
    """Return the size in bytes (-1 if unknown) and a hash of the version."""
    fingerprint = int.from_bytes(hashlib.sha256(repr(version).encode()).digest()[:6])
    return [-1 if size is None else int(size), fingerprint]


@contextmanager
def open_url(url: str, *, from_start: bool) -> Generator[Any]:
    """Open a remote file, for sequential reading or for random access."""
    with connect(url) as (system, path):
        # a single response works with servers that do not support byte ranges
        options = {"block_size": 0} if from_start and url.startswith("http") else {}
        with system.open(path, "rb", **options) as file:
            yield BufferedReader(file, _BLOCK) if from_start else file


@contextmanager
def wrap_errors(source: str, remedy: str) -> Generator[None]:
    """Re-raise any exception as a `DataError` that names `source`, without its credentials."""
    try:
        yield
    except GiddError:
        raise
    except Exception as error:  # every file system and compression has its own exceptions
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = hide_secrets(f"{type(cause).__name__} {cause}", source)
        reason = " ".join(reason.split()).rstrip(".")
        # not chained: the messages of the causes contain the full URL
        raise DataError(
            f"{without_credentials(source)} cannot be read: {reason}. {remedy}"
        ) from None


@contextmanager
def connect(url: str) -> Generator[tuple[Any, str]]:
    """Yield the file system of a URL and the path in it; errors contain no credentials."""
    full = expand_secrets(url)
    scheme = full.partition("://")[0]
    if scheme in PACKAGES:
        optional_package(*PACKAGES[scheme])
    with wrap_errors(full, _REMEDY):
        options: dict[str, Any] = {}
        if full.startswith(("http://", "https://")):
            timeout = optional_package("aiohttp", "data").ClientTimeout(
                total=None, sock_connect=SECONDS_TO_CONNECT, sock_read=SECONDS_OF_SILENCE
            )
            # without compression by the server: sizes and byte ranges refer to the stored file
            headers = {"Accept-Encoding": "identity"}
            options = {"client_kwargs": {"timeout": timeout}, "headers": headers}
        yield optional_package("fsspec", "data").core.url_to_fs(full, **options)
