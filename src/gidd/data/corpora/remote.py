"""Files behind a URL: any that `fsspec` knows (https://, s3://, gs://, hf://, file://, ...).

Passwords and signatures may stand in a URL, before the host and after "?". They are used to open
it and shown nowhere: records and messages have URLs as `without_credentials` gives them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator
from contextlib import contextmanager
from io import BufferedReader
from typing import Any

from gidd.common.optional import optional_package
from gidd.errors import DataError, GiddError

SECONDS_TO_CONNECT = 30
SECONDS_OF_SILENCE = 60
"""A server that sends nothing for so long is given up; a download as a whole may take days."""

_BLOCK = 1 << 20
_VERSION = (
    *("ETag", "etag", "Content-MD5", "md5Hash", "blob_id", "VersionId", "generation"),
    *("Last-Modified", "LastModified", "last_modified", "mtime", "updated"),
)
"""What file systems call the field that changes when a file does."""

_REMEDY = (
    "Check the URL and the connection, and that the credentials are where the file system looks "
    "for them (its environment variables or settings); then run the same command again."
)


def is_url(name: str) -> bool:
    """Whether a source is a URL and not a path."""
    return "://" in name


def without_credentials(name: str) -> str:
    """A URL without user, password, query and fragment; anything else as it is."""
    scheme, mark, rest = name.partition("://")
    if not mark:
        return name
    host, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def redacted(text: str) -> str:
    """A text in which every URL is as `without_credentials`."""
    return re.sub(r"[\w+.-]+://[^\s'\"<>]+", lambda found: without_credentials(found[0]), text)


def list_files(url: str, endings: tuple[str, ...]) -> list[str]:
    """The files that a URL stands for: itself, all that match its `*`, or all below a folder.

    Args:
        url: With one of the endings it is a file.
        endings: How the names of files end that hold documents; others are passed over.
    """
    place = without_credentials(url)
    with named_errors(place):
        system, path = _system(url)
        if "*" in place:
            found = system.glob(path)
        elif place.endswith(endings):
            return [url]
        else:
            found = system.find(path)
        files = [system.unstrip_protocol(file) for file in found]
    files = [file for file in files if without_credentials(file).endswith(endings)]
    if not files:
        raise DataError(
            f"{place} holds no document: there is no file that ends in {', '.join(endings)}, or "
            "the server does not list its files. Check the URL, or name each file."
        )
    return sorted(files, key=lambda file: file.split("/"))


def stamp(url: str) -> list[int]:
    """Bytes (-1 if the server does not say) and a number that changes with the file."""
    with named_errors(without_credentials(url)):
        system, path = _system(url)
        about = system.info(path)
    version = repr([about.get(field) for field in _VERSION])
    number = int.from_bytes(hashlib.sha256(version.encode()).digest()[:6])
    return [-1 if about.get("size") is None else int(about["size"]), number]


@contextmanager
def open_url(url: str, *, from_start: bool) -> Generator[Any]:
    """A remote file, for reading from its start or at any place."""
    with named_errors(without_credentials(url)):
        system, path = _system(url)
        # one long answer needs no server that can send parts of a file
        options = {"block_size": 0} if from_start and url.startswith("http") else {}
        with system.open(path, "rb", **options) as file:
            yield BufferedReader(file, _BLOCK) if from_start else file


@contextmanager
def named_errors(place: str) -> Generator[None]:
    """Whatever goes wrong with a URL, as a DataError that names it and gives nothing away."""
    try:
        yield
    except GiddError:
        raise
    except Exception as error:  # each file system has errors of its own
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = " ".join(redacted(f"{type(cause).__name__} {cause}").split()).rstrip(".")
        # without the chain of errors: their texts hold the whole URL
        raise DataError(f"{place} cannot be read: {reason}. {_REMEDY}") from None


def _system(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path there."""
    options: dict[str, Any] = {}
    if url.startswith(("http://", "https://")):
        timeout = optional_package("aiohttp", "data").ClientTimeout(
            total=None, sock_connect=SECONDS_TO_CONNECT, sock_read=SECONDS_OF_SILENCE
        )
        # a file is wanted as it is stored, not compressed for the way
        options = {
            "client_kwargs": {"timeout": timeout},
            "headers": {"Accept-Encoding": "identity"},
        }
    return optional_package("fsspec", "data").core.url_to_fs(url, **options)
