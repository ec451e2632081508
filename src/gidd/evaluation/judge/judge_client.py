"""A client of chat completions: any server with the protocol of OpenAI's API.

endpoint = ChatEndpoint(base_url="https://api.openai.com/v1", model="gpt-4o-2024-08-06", key=key)
reply = endpoint.ask("Grade this text: ...", seed=0)

Standard library only. The key is sent to the host of `base_url` alone: redirects are not followed.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple, cast, final
from urllib.parse import SplitResult, urlsplit

from gidd.common.files import parse_json
from gidd.common.terminal import printable
from gidd.errors import ConfigError, DataError, GiddError

RETRIED_STATUS: Final = (408, 409, 425, 429, 500, 502, 503, 504)
"""Temporary errors: timeouts, rate limits, overload."""

_FIRST_DELAY, _LONGEST_DELAY = 1.0, 60.0
_LONGEST_RETRY_AFTER = 300.0
"""Seconds to wait between attempts, whatever the server asks for."""

_REPLY_BYTES = 1 << 20
"""Of a response: 1,024 tokens take about 5 kB."""

_EXCERPT = 300
"""Characters of a server's message that are shown."""

_NO_QUOTA = ("insufficient_quota", "credit_balance_exhausted")
"""Errors of status 429 that no waiting resolves."""


class Reply(NamedTuple):
    """An answer of the model."""

    content: str
    is_complete: bool
    """False if `max_tokens` cut it off."""

    model: str = ""
    """Version of the model, as the server names it."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class InvalidReply(DataError):
    """The server sent something that is not a chat completion."""


class NoReply(DataError):
    """The server did not answer, after all attempts."""


class _Temporary(Exception):
    """An attempt failed in a way that may not happen again."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: Any, **_options: Any) -> None:
        """Follow none: the next host would receive the key and the samples."""


@final
@dataclass(frozen=True, kw_only=True)
class ChatEndpoint:
    """A model behind a chat-completions API."""

    base_url: str
    model: str
    key: str | None = field(default=None, repr=False)
    """API key, sent as a bearer token; None sends none."""

    temperature: float = 0.0
    max_tokens: int = 1024
    timeout: float = 60.0
    """Seconds for one attempt."""

    max_retries: int = 6

    def __post_init__(self) -> None:
        """Refuse URLs and keys that cannot be sent, without showing a secret."""
        url = urlsplit(self.base_url if _is_word(self.base_url) else "")
        if url.scheme not in ("http", "https") or not url.hostname or not _has_valid_port(url):
            raise ConfigError(
                "--base-url must be a URL that starts with https:// or http://, such as "
                "https://api.openai.com/v1 or http://localhost:8000/v1."
            )
        if url.username or url.password or url.query or url.fragment:
            raise ConfigError(
                "--base-url must have no user, password, query or fragment: it is recorded in the "
                "result. Put the key into an environment variable (--api-key-variable NAME)."
            )
        if self.key is not None and not _is_word(self.key):
            raise ConfigError(
                "the API key must be printable ASCII characters without spaces and line breaks. "
                "Set the environment variable again."
            )

    @property
    def host(self) -> str:
        """Host and port, as in the URL."""
        return urlsplit(self.base_url).netloc

    @property
    def url(self) -> str:
        """Address of the requests."""
        return f"{self.base_url.rstrip('/')}/chat/completions"

    @property
    def sends_key_unencrypted(self) -> bool:
        """Whether others on the network could read the key."""
        url = urlsplit(self.base_url)
        is_local = url.hostname in ("localhost", "127.0.0.1", "::1")
        return self.key is not None and url.scheme == "http" and not is_local

    def ask(
        self, prompt: str, *, seed: int, sleep: Callable[[float], object] = time.sleep
    ) -> Reply:
        """Send one message and return the answer; retry temporary errors, after `sleep`.

        A request that timed out may have been paid for: the server does not say.

        Raises `ConfigError` if the server refuses the request, `NoReply` if it never answers and
        `InvalidReply` if its answer is not a chat completion.
        """
        reason = ""
        for attempt in range(self.max_retries + 1):
            try:
                return self._attempt(prompt, seed)
            except _Temporary as problem:
                reason = str(problem)
                if attempt < self.max_retries:
                    sleep(_delay(attempt, problem.retry_after, prompt))
        raise NoReply(f"{self.host} did not answer in {self.max_retries + 1} attempts: {reason}.")

    def _attempt(self, prompt: str, seed: int) -> Reply:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": seed,
        }
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url, data, headers, method="POST")
        opener = urllib.request.build_opener(_NoRedirects())
        try:
            with opener.open(request, timeout=self.timeout) as response:
                return self._reply(_read(response, self.timeout))
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None

    def _reply(self, data: bytes) -> Reply:
        try:
            record = cast("dict[str, Any]", parse_json(data, "the answer"))
            choice, usage = record["choices"][0], record.get("usage") or {}
            content = choice["message"]["content"]
            if not isinstance(content, str):
                raise TypeError("the message has no text")
            content.encode()  # halves of surrogate pairs could not be recorded
            return Reply(
                self._public(content),
                choice.get("finish_reason") != "length",
                self._public(str(record.get("model", "")))[:_EXCERPT],
                int(usage.get("prompt_tokens") or 0),
                int(usage.get("completion_tokens") or 0),
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            shown = f"{type(error).__name__}: {error}"
            raise InvalidReply(
                f"{self.host} sent no chat completion: {self._public(shown)[:_EXCERPT]}"
            ) from None

    def _refusal(self, error: urllib.error.HTTPError) -> Exception:
        """Return what to raise for a status other than 2xx."""
        message, code = _error_message(error)
        shown = f"status {error.code} ({self._public(message)[:_EXCERPT] or error.reason})"
        if error.code in RETRIED_STATUS and code not in _NO_QUOTA:
            return _Temporary(shown, _retry_after(error.headers))
        remedy = {
            401: "Check the API key in the environment variable.",
            403: "Check what the API key may be used for.",
            404: "Check --base-url and --model.",
            429: "The account has no credit left: see its billing page.",
        }.get(error.code, "Check --base-url, --model and --max-tokens.")
        if 300 <= error.code < 400:
            place = urlsplit(str(error.headers.get("Location", ""))).hostname or "another address"
            remedy = f"It redirects to {place}: name the final address with --base-url."
        return ConfigError(f"{self.host} refused the request with {printable(shown)}. {remedy}")

    def _unreachable(self, error: OSError | http.client.HTTPException) -> Exception:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            return ConfigError(
                f"the certificate of {self.host} is not valid: {reason.verify_message}. Check "
                "--base-url, or set SSL_CERT_FILE to the certificates of your network."
            )
        shown = self._public(str(reason))[:_EXCERPT] or type(reason).__name__
        return _Temporary(f"{type(reason).__name__}: {shown}" if str(reason) else shown)

    def _public(self, text: str) -> str:
        """Remove the key, which a server could send back, from what is printed or recorded."""
        return text.replace(self.key, "...") if self.key else text


def _is_word(text: str) -> bool:
    """Whether a text can be part of a request without being encoded."""
    return text.isascii() and text.isprintable() and " " not in text and bool(text)


def _has_valid_port(url: SplitResult) -> bool:
    try:
        return url.port != 0
    except ValueError:
        return False


def _read(response: http.client.HTTPResponse, timeout: float) -> bytes:
    """Read a response of limited size in limited time: each of many small parts may be in time."""
    data, deadline = b"", time.monotonic() + timeout
    while chunk := response.read1(1 << 16):
        data += chunk
        if len(data) > _REPLY_BYTES:
            raise InvalidReply(f"the server sent more than {_REPLY_BYTES:,} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return data


def _error_message(error: urllib.error.HTTPError) -> tuple[str, str]:
    """Return the message and the code of an error as OpenAI sends them; empty if there is none."""
    try:
        data = error.read(_REPLY_BYTES)
        record = cast("dict[str, Any]", parse_json(data, "the error"))["error"]
        codes = [str(record.get(name)) for name in ("type", "code")]
        code = next((code for code in codes if code in _NO_QUOTA), codes[-1])
        return str(record.get("message", "")), code
    except (GiddError, ValueError, TypeError, KeyError, AttributeError):
        return "", ""
    except (OSError, http.client.HTTPException):  # the connection broke after the status
        return "", ""


def _retry_after(headers: Message) -> float | None:
    """Return the seconds that a server asks to wait, given as a number or as a date."""
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:  # by the server's own clock
        until, now = (parsedate_to_datetime(text) for text in (value, headers.get("Date", "")))
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError):
        return None


def _delay(attempt: int, retry_after: float | None, prompt: str) -> float:
    """Return the seconds before the next attempt: exponential, and different for every prompt.

    The jitter, a factor in [0.5, 1], is a hash of prompt and attempt: requests that failed together
    are not repeated together, and a test can compute the delay.
    """
    digest = hashlib.sha256(f"{attempt}:{prompt}".encode(errors="surrogatepass")).digest()
    jitter = 0.5 + int.from_bytes(digest[:4], "big") / 2**33
    delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2**attempt) * jitter
    return max(delay, min(retry_after or 0.0, _LONGEST_RETRY_AFTER))
