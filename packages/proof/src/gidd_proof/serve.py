"""Serve the HTTP protocol of LanguageTool, for editors that can use a server of it.

- Listens on this machine only, and sends nothing anywhere.
- In an editor, set the address of the LanguageTool server to http://127.0.0.1:8081, with /v2 at
  the end for some editors.

Examples:
  gidd-proof serve
  gidd-proof serve --port 8082 --allow-origin "*"
"""

from __future__ import annotations

import io
import json
import re
import socket
import threading
from bisect import bisect_right
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from operator import itemgetter
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, cast, final
from urllib.parse import parse_qs, urlsplit

import tyro

from gidd.cli import parse, print_message
from gidd.errors import ConfigError, DataError, LimitReached
from gidd_proof.prose import find_sentences, main_language, read_languages
from gidd_proof.user_words import (
    change_user_words,
    read_user_words,
    require_word,
    user_file,
    word_files,
)

if TYPE_CHECKING:
    from gidd.pipeline import TextEdit
    from gidd_proof.proofreader import Proofreader

MAX_CHARACTERS: Final = 100_000
"""Longest text of a request."""

MAX_BYTES: Final = 8 * MAX_CHARACTERS
RULE, CATEGORY = "GIDD_PROOF_SPELLING", "TYPOS"
_IDS = "disabledCategories", "enabledCategories", "disabledRules", "enabledRules"
"""Fields that switch spelling off or on, in the order of LanguageTool: the last one decides."""

SECONDS: Final = 60.0
"""Default of the longest time to check a text."""

_SECONDS = 20.0
"""Time that a client may take to send its request, and to read the answer."""

_CONTEXT, _MAX_REPLACEMENTS = 40, 5
_SENTENCE = 500
"""Most characters of a match's sentence on either side of it: every match repeats its sentence."""

_LEAST_WRONG = 0.5
"""A place that is not changed is reported if it is right with less than this probability."""

LANGUAGES: Final = (
    ("English", "en", "en"),
    ("English (US)", "en", "en-US"),
    ("English (GB)", "en", "en-GB"),
    ("English (Australian)", "en", "en-AU"),
    ("English (Canadian)", "en", "en-CA"),
)
FIELDS: Final = {
    "check": (
        *("text", "data", "language", "preferredVariants", "level", "enabledOnly", "enabledRules"),
        *("disabledRules", "enabledCategories", "disabledCategories"),
    ),
    "words": ("offset", "limit"),
    "words/add": ("word",),
    "words/delete": ("word",),
}
"""Fields of each path that have an effect; an answer names the others in its warnings."""

HEADER: Final = "X-Requested-With"
"""A request that changes words must have it: forms of web pages cannot send it."""

_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/?#@A-Z]+")


@dataclass(frozen=True, kw_only=True)
class ServeCommand:
    """Options of `gidd-proof serve`."""

    host: str = "127.0.0.1"
    """Address to listen on; by default only programs on this machine can connect."""

    port: int = 8081
    """Port; 0 for a free one."""

    allow_origin: Annotated[str | None, tyro.conf.DisallowNone] = None
    """Web page or browser extension that may use the server, e.g. https://example.org; "*" for any,
    which cannot read or change words; by default none."""

    seconds: float = SECONDS
    """Longest time to check a text."""

    model: Annotated[str | None, tyro.conf.DisallowNone] = None
    """Folder of a model of characters; by default the packaged English model."""


def serve(arguments: Sequence[str]) -> None:
    """Parse, load the model and answer requests until interrupted."""
    command = parse(ServeCommand, arguments, prog="gidd-proof serve", description=__doc__)
    if not 0 <= command.port < 1 << 16:
        raise ConfigError(f"--port must be in [0, 65535], got {command.port}.")
    if not command.host:
        raise ConfigError("--host must be an address or a name, got ''. All addresses: 0.0.0.0.")
    if not 0 < command.seconds <= threading.TIMEOUT_MAX:
        raise ConfigError(f"--seconds must be positive, got {command.seconds}.")
    if command.allow_origin is not None and not _ORIGIN.fullmatch(command.allow_origin):
        raise ConfigError(
            '--allow-origin must be "*" or a scheme and a host in lower case, such as '
            f"https://example.org, without / at its end, got {command.allow_origin!r}."
        )
    import gidd_proof

    proofreader = gidd_proof.load(command.model)
    proofreader.load_pipe()  # before the first request
    checker = Checker(proofreader, user_file(), command.seconds)
    try:
        server = make_server(checker, command.host, command.port, command.allow_origin)
    except OSError as error:
        raise ConfigError(
            f"--host and --port must be a free address, got {command.host}:{command.port}: "
            f"{error.strerror}. Use another --port."
        ) from error
    print_message(f"listening on http://{command.host}:{server.server_port}/v2, Ctrl+C ends")
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print_message("stopped")


class AnnotatedText(NamedTuple):
    """The text that is checked, and the place of each character in the text with markup.

    Places are in UTF-16 code units, as JavaScript and Java count.
    """

    text: str
    starts: list[int]
    stops: list[int]

    @classmethod
    def of(cls, parts: Sequence[tuple[str, str | None]]) -> AnnotatedText:
        """Join parts (text, None) and (markup, what it is read as)."""
        text, starts, stops, place = list[str](), list[int](), list[int](), 0
        for written, read_as in parts:
            end = place + utf16_length(written)
            for character in written if read_as is None else read_as:
                starts.append(place if read_as is None else end)
                place += utf16_length(character) if read_as is None else 0
                stops.append(place if read_as is None else end)
                text.append(character)
            place = end
        return cls("".join(text), starts, stops)


def utf16_length(text: str) -> int:
    """Return the number of UTF-16 code units of a text."""
    return len(text) + sum(character > "\uffff" for character in text)


@final
class Checker:
    """A proofreader with the words of the user and the project; one request at a time."""

    def __init__(
        self, proofreader: Proofreader, words_file: Path, seconds: float = SECONDS
    ) -> None:
        self._packaged, self.words_file, self._lock = proofreader, words_file, threading.Lock()
        self._seconds = seconds
        self._proofreader = proofreader.with_words(self.words())

    def words(self) -> set[str]:
        """Return the words of the user and of the project."""
        user_words = [self.words_file] if self.words_file.exists() else []
        return read_user_words({*user_words, *word_files(Path.cwd())})

    def change_words(self, *, add: str = "", remove: str = "") -> bool:
        """Add or remove a word of the user."""
        with self._turn():
            is_changed = change_user_words(self.words_file, add=add, remove=remove)
            self._proofreader = self._packaged.with_words(self.words())
        return is_changed

    def edits(
        self, text: str, *, picky: bool = False, file_name: str | None = None
    ) -> list[TextEdit]:
        """Return the places of a text to report; the name of a file tells whether it is code."""
        if len(text) > MAX_CHARACTERS:
            raise DataError(f"a text must have at most {MAX_CHARACTERS} characters.")
        if not text.strip():
            return []
        with self._turn() as seconds:
            edits = self._proofreader.correct(text, file_name=file_name, seconds=seconds).edits
        return [e for e in edits if picky or e.is_change or e.probability_of(e.old) < _LEAST_WRONG]

    def language(self, text: str, english: str) -> dict[str, Any]:
        """Return the language of most of a text, with a code for English."""
        language, fraction = main_language(read_languages(text, self._packaged.words))
        code, _, name = language.partition(" ")
        return {
            "name": name or "Undetermined",
            "code": english if code == "en" else code or "und",
            "confidence": round(fraction, 3),
            "source": "fraction of the characters; sentences of other languages are not checked",
        }

    @contextmanager
    def _turn(self) -> Generator[float]:
        """Wait for earlier requests, and yield the seconds that are left."""
        end = monotonic() + self._seconds
        if not self._lock.acquire(timeout=self._seconds):
            raise LimitReached(f"earlier texts took all of --seconds {self._seconds:g}.")
        try:
            yield end - monotonic()
        finally:
            self._lock.release()


def make_server(
    checker: Checker, host: str, port: int, allow_origin: str | None
) -> ThreadingHTTPServer:
    """Return a server that is bound to its address."""

    @final
    class Handler(_Handler):
        def __init__(self, *arguments: Any) -> None:
            self.checker, self.allow_origin, self.host = checker, allow_origin, host.lower()
            super().__init__(*arguments)

    return ThreadingHTTPServer((host, port), Handler)


class TimedReader(io.RawIOBase):
    """Reads a socket until a time, however slowly the other side sends."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._end = connection, monotonic() + seconds

    def readable(self) -> bool:
        """Return True, as a file to read does."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Receive bytes, or raise `TimeoutError`."""
        if (left := self._end - monotonic()) <= 0:
            raise TimeoutError("the request was not sent in time")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    """Answers a request; every mistake of a client is a 4xx with a text."""

    checker: Checker
    allow_origin: str | None
    host: str
    server_version, sys_version = "gidd-proof", ""

    def setup(self) -> None:
        """Limit the time of the whole request."""
        super().setup()
        self.rfile = io.BufferedReader(TimedReader(self.connection, _SECONDS))

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            return self._send(411, "Error: the request must have a Content-Length.")
        if len(length) > 12 or int(length) > MAX_BYTES:
            self.close_connection = True
            return self._send(413, f"Error: a text must have at most {MAX_CHARACTERS} characters.")
        try:
            body = self.rfile.read(int(length)).decode()
            self._answer(read_form(body))
        except TimeoutError:
            self.close_connection = True
        except ValueError:  # not UTF-8, or too many fields
            self._send(400, "Error: the body must be a form in UTF-8.")

    def do_OPTIONS(self) -> None:
        self._answer({})

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no request, or has another method."""
        self._send(405 if code == 501 else code, f"Error: {message}.")

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: a text that is checked may be part of an address."""

    def _answer(self, form: dict[str, list[str]]) -> None:
        try:
            address = urlsplit(self.path)
            fields = read_form(address.query)
            path = address.path.removeprefix("/v2").strip("/")
            if problem := self._problem(path):
                return self._send(403, problem)
            if self.command == "OPTIONS":
                return self._send(204, "")
            if path.startswith("words/") and not self.headers.get(HEADER):
                return self._send(403, f"Error: a request for {path!r} needs a header {HEADER}.")
            if twice := [name for name in form if len(form[name] + fields.get(name, [])) > 1]:
                raise DataError(f"{twice[0][:40]!r} must be given once.")
            values = {name: value[-1] for name, value in (fields | form).items()}
            result = answer(self.checker, path, values, is_post=self.command == "POST")
        except LimitReached as error:
            return self._send(503, f"Error: {error} Send shorter texts.")
        except (DataError, ConfigError, ValueError) as error:
            return self._send(400, f"Error: {error}")
        except OSError:
            return self._send(403, "Error: the file of words cannot be written.")
        if result is None:
            return self._send(404, f"Error: there is no {self.path[:80]!r}. Use /v2/check.")
        if isinstance(result, str):
            return self._send(200, result)
        self._send(200, json.dumps(result), "application/json")

    def _problem(self, path: str) -> str:
        """Return why a request is refused because of who sends it, "" if it is not.

        A page of another site has an Origin; one that had its name bound to this address has a
        Host of another name. "*" lets no page read or change the user's words.
        """
        for host in self.headers.get_all("Host", []):
            if not is_address(host) and name_of(host) not in ("localhost", self.host):
                return f"Error: Host must be an address, localhost or --host, got {host[:80]!r}."
        for origin in self.headers.get_all("Origin", []):
            is_any = self.allow_origin == "*" and not path.startswith("words")
            if origin != self.allow_origin and not is_any:
                return f"Error: a web page needs --allow-origin with its address {origin[:80]!r}."
        return ""

    def _send(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        body = text.encode("utf-8", "replace")
        self.connection.settimeout(_SECONDS)
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if self.allow_origin is not None:
                self.send_header("Access-Control-Allow-Origin", self.allow_origin)
                self.send_header("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
                self.send_header("Access-Control-Allow-Headers", f"Content-Type, Accept, {HEADER}")
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # the client is gone
            self.close_connection = True


def read_form(text: str) -> dict[str, list[str]]:
    """Return the values of each field of a form in UTF-8; otherwise raise `ValueError`."""
    return parse_qs(text, keep_blank_values=True, max_num_fields=100, errors="strict")


def name_of(host: str) -> str:
    """Return the name of a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_address(host: str) -> bool:
    """Whether a Host header has an IP address: nobody can bind it to another address."""
    try:
        return bool(ip_address(name_of(host)))
    except ValueError:
        return False


def answer(checker: Checker, path: str, fields: Mapping[str, str], *, is_post: bool) -> Any:
    """Return the answer to a request as plain data or a text; None for an unknown path."""
    result = _answer(checker, path, fields, is_post=is_post)
    ignored = [name for name in fields if fields[name] and name not in FIELDS.get(path, ())]
    if ignored and isinstance(result, dict):
        warnings = cast("dict[str, Any]", result).setdefault("warnings", {})
        warnings["ignoredParameters"] = sorted({*warnings.get("ignoredParameters", ()), *ignored})
    return result


def _answer(checker: Checker, path: str, fields: Mapping[str, str], *, is_post: bool) -> Any:
    software = {"name": "LanguageTool", "version": "6.6", "buildDate": "", "premium": False}
    match path:
        case "check":
            return check_text(checker, fields)
        case "languages":
            return [dict(zip(("name", "code", "longCode"), row, strict=True)) for row in LANGUAGES]
        case "maxtextlength":
            return str(MAX_CHARACTERS)
        case "healthcheck":
            return "OK"
        case "info":
            return {"software": software}
        case "configinfo":
            rule = {"ruleId": RULE, "description": "Spelling", "categoryId": CATEGORY}
            return {
                "software": software,
                "parameter": {"maxTextLength": MAX_CHARACTERS},
                "rules": [
                    rule | {"categoryName": "Possible Typo", "isDictionaryBasedSpellingRule": True}
                ],
            }
        case "words":
            first, count = (read_count(fields, name) for name in ("offset", "limit"))
            words = sorted(checker.words())[first or 0 :]
            return {"words": words[:count]}
        case "words/add" | "words/delete" if is_post:
            word = require_word(fields.get("word"))
            if path == "words/add":
                return {"added": checker.change_words(add=word)}
            return {"deleted": checker.change_words(remove=word)}
        case _:
            return None


def read_count(fields: Mapping[str, str], name: str) -> int | None:
    """Return the number in a field; None without the field."""
    value = fields.get(name, "")
    if not re.fullmatch("[0-9]{0,9}", value):
        raise DataError(f"{name!r} must be a number in [0, 10**9), got {value[:40]!r}.")
    return int(value) if value else None


def check_text(checker: Checker, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer to /v2/check."""
    code, names = language_of(fields), {long: name for name, _, long in LANGUAGES}
    level = fields.get("level") or "default"
    if level not in ("default", "picky"):
        raise DataError(f"'level' must be default or picky, got {level[:40]!r}.")
    if ("text" in fields) == ("data" in fields):
        raise DataError("give either 'text' or 'data'.")
    ignored = [name for name in _IDS if set(ids_of(fields, name)) - {RULE, CATEGORY}]
    parts: list[tuple[str, str | None]] = [(fields.get("text", ""), None)]
    if "data" in fields:
        parts, others = read_annotation(fields["data"])
        ignored += others
    source = AnnotatedText.of(parts)
    edits = checker.edits(source.text, picky=level == "picky") if is_enabled(fields) else []
    sentences = find_sentences(source.text)
    detected: dict[str, Any] = {"name": names[code], "code": code, "source": "given"}
    if fields["language"] == "auto":
        detected = checker.language(source.text, code)
    ranges = [[source.starts[a], source.stops[b - 1]] for a, b in sentences]
    return {
        "software": {
            "name": "LanguageTool",
            "version": "6.6",
            "buildDate": "",
            "apiVersion": 1,
            "premium": False,
            "status": "answered by gidd-proof",
        },
        "warnings": {"incompleteResults": False, "ignoredParameters": ignored},
        "language": {"name": names[code], "code": code, "detectedLanguage": detected},
        "matches": [match_of(source, edit, sentences) for edit in edits],
        "sentenceRanges": ranges,
        "extendedSentenceRanges": [
            {"from": a, "to": b, "detectedLanguages": []} for a, b in ranges
        ],
    }


def language_of(fields: Mapping[str, str]) -> str:
    """Return the code of the language in which a text is read."""
    codes = [code for _, _, code in LANGUAGES]
    language, variants = fields.get("language", ""), ids_of(fields, "preferredVariants")
    if language not in ("auto", *codes):
        allowed = ", ".join(codes)
        raise DataError(f"'language' must be auto or one of {allowed}, got {language[:40]!r}.")
    if variants and language != "auto":
        raise DataError("'preferredVariants' needs the 'language' auto.")
    return language if language != "auto" else next((v for v in variants if v in codes), "en-US")


def ids_of(fields: Mapping[str, str], name: str) -> list[str]:
    """Return the identifiers in a field, which commas separate."""
    return [word for part in fields.get(name, "").split(",") if (word := part.strip())]


def is_enabled(fields: Mapping[str, str]) -> bool:
    """Whether the fields of a request leave spelling switched on; the last of them decides."""
    only = fields.get("enabledOnly") or "false"
    if only not in ("true", "yes", "false", "no"):
        raise DataError(f"'enabledOnly' must be true or false, got {only[:40]!r}.")
    chosen = {name: ids_of(fields, name) for name in _IDS}
    is_on = only in ("false", "no")
    if not is_on and any(chosen[name] for name in _IDS[::2]):
        raise DataError("'enabledOnly' excludes 'disabledRules' and 'disabledCategories'.")
    if not is_on and not any(chosen.values()):
        raise DataError("'enabledOnly' needs 'enabledRules' or 'enabledCategories'.")
    for name, ids in chosen.items():
        if (CATEGORY if "Categories" in name else RULE) in ids:
            is_on = name.startswith("enabled")
    return is_on


def read_annotation(data: str) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Return the parts of the field `data`, and the names in it that have no effect.

    A part is (text, None) or (markup, what it is read as).
    """
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError("'data' must be JSON.") from error
    value = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    ignored = [f"data.{name[:40]}" for name in value if name not in ("text", "annotation")]
    rows: Any = value.get("annotation", [{"text": value.get("text")}])
    if not isinstance(rows, list) or len(value) - len(ignored) != 1:
        raise DataError("'data' must have either 'text' or a list 'annotation'.")
    parts: list[tuple[str, str | None]] = []
    for row in cast("list[Any]", rows):
        match row:
            case {"text": str(text)} if len(cast("dict[str, Any]", row)) == 1:
                parts.append((_valid(text), None))
            case {"markup": str(markup), **rest} if rest.keys() <= {"interpretAs"} and isinstance(
                read_as := rest.get("interpretAs", ""), str
            ):
                parts.append((_valid(markup), _valid(read_as)))
            case _:
                raise DataError(
                    "a part of 'data' must have a string 'text', or a string 'markup' with or "
                    "without 'interpretAs', and nothing else."
                )
    return parts, ignored


def _valid(text: str) -> str:
    """Return a text with pairs of surrogates joined and single ones replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def match_of(
    source: AnnotatedText, edit: TextEdit, sentences: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """Return a place as an entry of `matches`."""
    offset, stop = source.starts[edit.start], source.stops[edit.stop - 1]
    first = max(0, edit.start - _CONTEXT)
    others = [a for a in edit.alternatives if a.text != edit.old][:_MAX_REPLACEMENTS]
    a, b = sentences[bisect_right(sentences, edit.start, key=itemgetter(0)) - 1]
    return {
        "message": "Possible spelling mistake found.",
        "shortMessage": "Spelling mistake",
        "replacements": [
            {"value": other.text, "confidence": round(other.probability, 4)} for other in others
        ],
        "offset": offset,
        "length": stop - offset,
        "context": {
            "text": source.text[first : edit.stop + _CONTEXT],
            "offset": utf16_length(source.text[first : edit.start]),
            "length": utf16_length(edit.old),
        },
        "sentence": source.text[
            max(a, edit.start - _SENTENCE) : min(b, edit.stop + _SENTENCE)
        ].strip(),
        "type": {"typeName": "UnknownWord" if edit.is_change else "Hint"},
        "rule": {
            "id": RULE,
            "description": "Possible spelling mistake",
            "issueType": "misspelling",
            "category": {"id": CATEGORY, "name": "Possible Typo"},
        },
        "ignoreForIncompleteSentence": False,
        "contextForSureMatch": 0,
    }
