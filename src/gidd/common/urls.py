"""URLs and their secrets: user, password and query, which are used but never shown or recorded.

A secret may be a reference, `${NAME}` to an environment variable or `${/path/of/a/file}`, so that
neither the process list nor the shell history contains it. One in the path is not recognised.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from gidd.common.files import Limit, read_regular
from gidd.errors import ConfigError, DataError

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:[0-9]*)?|arn:.*")
"""A host and a port; Amazon's names of resources have more colons."""

_CHAIN = re.compile(r"::(?=[A-Za-z][\w+.-]*(?:://|::))")
"""Between the URLs of a chain, as in zip://pages.jsonl::https://example.org/pages.zip."""

_HIDDEN = "..."
_SHORTEST_SECRET = 4  # shorter parts of a URL are found in ordinary words
_SECRET = Limit(1 << 16)  # of a file with a secret


class _Url(NamedTuple):
    scheme: str
    credentials: str  # user and password
    place: str  # host and path
    query: str  # query and fragment, with "?" or "#"


def is_url(name: str) -> bool:
    """Return whether a source is a URL rather than a path."""
    return "://" in name


def without_credentials(name: str) -> str:
    """Remove user, password, query and fragment from a URL; leave other names unchanged."""
    return "::".join(part.scheme + part.place for part in _parts(name)) if is_url(name) else name


def redacted(text: str) -> str:
    """Apply `without_credentials` to every URL in a text."""
    text = re.sub(r"\b(https?):/(?=[^/\s])", r"\1://", text)  # `Path` makes http:/ of http://
    url = r"[\w+.-]+://(?:\$\{[^{}]*\}|[^\s'\"<>])+"
    return re.sub(url, lambda match: without_credentials(match[0]), text)


def redacted_argument(word: str) -> str:
    """Apply `without_credentials` to the URL at the end of a word of a command line."""
    match = re.search(r"(?:[\w+.-]+::)*[\w+.-]+://", word)
    start = len(word) if match is None else match.start()
    return word[:start] + without_credentials(word[start:])


def hide_secrets(text: str, url: str) -> str:
    """Remove the secrets of a URL from a text in which it, or parts of it, may occur."""
    text = text.replace(url, without_credentials(url))
    secrets = {form for secret in _secrets(url) for form in (secret, unquote(secret))}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, _HIDDEN)
    return redacted(text)


def has_inline_secrets(name: str) -> bool:
    """Return whether user, password or query of a URL are written out, not as references."""
    return any(_REFERENCE.sub("", secret) for secret in _secrets(name))


def expand_secrets(url: str) -> str:
    """Replace the references in user, password and query; only for URLs that the user gave."""
    expanded: list[str] = []
    for part in _parts(url):
        if part.place == _HIDDEN:
            raise ConfigError(
                f"{without_credentials(url)}: user and password cannot be told from the host. "
                "Percent-encode / ? # @ and : in them, e.g. / as %2F."
            )
        at = "@" if part.credentials else ""
        credentials, query = _expand(part.credentials, "/?#@"), _expand(part.query, "#")
        expanded.append(part.scheme + credentials + at + part.place + query)
    return "::".join(expanded)


def restore_references(names: Iterable[str], url: str) -> list[str]:
    """Return URLs that a server listed below `url`, with the references of `url` for secrets."""
    names = map(require_no_references, names)
    written, used = _split(url).credentials, _split(expand_secrets(url)).credentials
    return [name.replace(f"://{used}@", f"://{written}@", 1) if used else name for name in names]


def require_no_references(name: str) -> str:
    """Return a name that a server listed; refuse references, by which it could ask for secrets."""
    if "${" in name:
        raise DataError(
            f"{without_credentials(name)}: a name listed by a server must not contain ${{, "
            "which refers to a secret. Name each file that you trust."
        )
    return name


def _parts(url: str) -> list[_Url]:
    return [_split(part) for part in _CHAIN.split(url)]


def _split(url: str) -> _Url:
    """Split one URL of a chain; a reference may contain any character.

    Everything counts as credentials if what precedes the path is not a host.
    """
    masked = _REFERENCE.sub(lambda match: "_" * len(match[0]), url)
    match = re.fullmatch(r"(.*?://)(?:([^/?#]*)@)?([^?#]*)(.*)", masked, re.DOTALL)
    if match is None:
        return _Url("", "", url, "")
    scheme, credentials, place, query = (url[slice(*match.span(group))] for group in range(1, 5))
    is_host = _HOST.fullmatch(match[3].partition("/")[0])
    if is_host or not (scheme.startswith("http") or "@" in masked):
        return _Url(scheme, credentials, place, query)
    return _Url(scheme, url[len(scheme) :], _HIDDEN, "")


def _secrets(url: str) -> list[str]:
    """Return user, password and the values of the query, as written."""
    secrets: list[str] = []
    for part in _parts(url) if is_url(url) else ():
        secrets += re.findall(r"(?:\$\{[^{}]*\}|[^:])+", part.credentials)
        secrets += re.findall(r"[?&#](?:[^=&#$]*=)?((?:\$\{[^{}]*\}|[^&#])*)", part.query)
    return secrets


def _expand(text: str, forbidden: str) -> str:
    def value(match: re.Match[str]) -> str:
        secret = _secret(match[1])
        if wrong := re.findall(rf"[{forbidden}\s\x00-\x1f]", secret):
            raise ConfigError(
                f"{match[0]} in a URL has a value with {wrong[0]!r}: percent-encode it as "
                f"%{ord(wrong[0]):02X}."
            )
        return secret

    return _REFERENCE.sub(value, text)


def _secret(name: str) -> str:
    if re.fullmatch(r"[A-Za-z_]\w*", name):
        if name not in os.environ:
            raise ConfigError(f"the environment variable {name} is not set; a URL refers to it.")
        return os.environ[name]
    if not name.startswith(("/", "~/")):
        raise ConfigError(
            f"${{{name}}} in a URL must be an environment variable, ${{NAME}}, or the absolute "
            "path of a file, ${/path} or ${~/path}."
        )
    path = Path(name).expanduser()
    try:
        return read_regular(path, ConfigError, _SECRET).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{path}, the secret of a URL, cannot be read: {reason}.") from None
