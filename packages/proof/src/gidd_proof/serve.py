"""Serve the HTTP protocol of LanguageTool, for editors that can use a server of it.

- Listens on this machine only, and sends nothing anywhere.
- In an editor, set the address of the LanguageTool server to http://127.0.0.1:8081, with /v2 at
  the end for some editors.

Examples:
  gidd-proof serve
  gidd-proof serve --port 8082 --allow-origin "*"
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, cast, final
from urllib.parse import parse_qs, urlsplit

import tyro

from gidd.cli import parse, print_message
from gidd.errors import ConfigError, DataError
from gidd_proof.user_words import change_user_words, read_user_words, user_file, word_files

if TYPE_CHECKING:
    from gidd.pipeline import TextEdit
    from gidd_proof.proofreader import Proofreader

MAX_CHARACTERS: Final = 100_000
"""Longest text of a request."""

MAX_BYTES: Final = 8 * MAX_CHARACTERS
RULE, CATEGORY = "GIDD_PROOF_SPELLING", "TYPOS"
_SECONDS = 20.0
"""Time that a client may take to send its request."""

_CONTEXT, _MAX_REPLACEMENTS = 40, 5
_LEAST_WRONG = 0.5
"""A place that is not changed is reported if it is right with less than this probability."""

LANGUAGES: Final = (
    ("English", "en", "en"),
    ("English (US)", "en", "en-US"),
    ("English (GB)", "en", "en-GB"),
    ("English (Australian)", "en", "en-AU"),
    ("English (Canadian)", "en", "en-CA"),
)
_SENTENCE = re.compile(r"[^.!?\n]*(?:[.!?]+(?=\s|$)|\n|$)\s*|.")


@dataclass(frozen=True, kw_only=True)
class ServeCommand:
    """Options of `gidd-proof serve`."""

    host: str = "127.0.0.1"
    """Address to listen on; by default only programs on this machine can connect."""

    port: int = 8081
    """Port; 0 for a free one."""

    allow_origin: Annotated[str | None, tyro.conf.DisallowNone] = None
    """Web pages that may use the server, e.g. "*" for browser extensions; by default none."""

    model: Annotated[str | None, tyro.conf.DisallowNone] = None
    """Folder of a model of characters; by default the packaged English model."""


def serve(arguments: Sequence[str]) -> None:
    """Parse, load the model and answer requests until interrupted."""
    command = parse(ServeCommand, arguments, prog="gidd-proof serve", description=__doc__)
    if not 0 <= command.port < 1 << 16:
        raise ConfigError(f"--port must be in [0, 65535], got {command.port}.")
    import gidd_proof

    proofreader = gidd_proof.load(command.model)
    proofreader.load_pipe()  # before the first request
    checker = Checker(proofreader, user_file())
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

    def __init__(self, proofreader: Proofreader, words_file: Path) -> None:
        self._packaged, self.words_file, self._lock = proofreader, words_file, threading.Lock()
        self._proofreader = proofreader.with_words(self.words())

    def words(self) -> set[str]:
        """Return the words of the user and of the project."""
        own = [self.words_file] if self.words_file.is_file() else []
        return read_user_words({*own, *word_files(Path.cwd())})

    def change_words(self, *, add: str = "", remove: str = "") -> bool:
        """Add or remove a word of the user."""
        with self._lock:
            is_changed = change_user_words(self.words_file, add=add, remove=remove)
            self._proofreader = self._packaged.with_words(self.words())
        return is_changed

    def edits(self, text: str, *, picky: bool = False) -> list[TextEdit]:
        """Return the places of a text to report."""
        if not text.strip():
            return []
        with self._lock:
            found = self._proofreader.correct(text).edits
        return [e for e in found if picky or e.is_change or e.probability_of(e.old) < _LEAST_WRONG]


def make_server(
    checker: Checker, host: str, port: int, allow_origin: str | None
) -> ThreadingHTTPServer:
    """Return a server that is bound to its address."""

    @final
    class Handler(_Handler):
        def __init__(self, *arguments: Any) -> None:
            self.checker, self.allow_origin = checker, allow_origin
            super().__init__(*arguments)

    return ThreadingHTTPServer((host, port), Handler)


class _Handler(BaseHTTPRequestHandler):
    """Answers a request; every mistake of a client is a 4xx with a text."""

    checker: Checker
    allow_origin: str | None
    timeout = _SECONDS
    server_version, sys_version = "gidd-proof", ""

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
            self._answer(parse_qs(body, keep_blank_values=True, max_num_fields=100))
        except TimeoutError:
            self.close_connection = True
        except ValueError:  # not UTF-8, or too many fields
            self._send(400, "Error: the body must be a form in UTF-8.")

    def do_OPTIONS(self) -> None:
        self._send(204, "")

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: a text that is checked may be part of an address."""

    def _answer(self, form: dict[str, list[str]]) -> None:
        try:
            address = urlsplit(self.path)
            values = parse_qs(address.query, keep_blank_values=True, max_num_fields=100) | form
            given = {name: value[-1] for name, value in values.items()}
            path = address.path.removeprefix("/v2").strip("/")
            is_page = self.headers.get("Origin", "").startswith("http")
            if path.startswith("words/") and is_page and self.allow_origin is None:
                return self._send(403, "Error: web pages need --allow-origin to change words.")
            found = answer(self.checker, path, given, is_post=self.command == "POST")
        except (DataError, ConfigError, ValueError) as error:
            return self._send(400, f"Error: {error}")
        except OSError:
            return self._send(403, "Error: the file of words cannot be written.")
        if found is None:
            return self._send(404, f"Error: there is no {self.path[:80]!r}. Use /v2/check.")
        if isinstance(found, str):
            return self._send(200, found)
        self._send(200, json.dumps(found), "application/json")

    def _send(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        body = text.encode("utf-8", "replace")
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if self.allow_origin is not None:
                self.send_header("Access-Control-Allow-Origin", self.allow_origin)
                self.send_header("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
                self.send_header("Access-Control-Allow-Headers", "Content-Type, Accept")
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # the client is gone
            self.close_connection = True


def answer(checker: Checker, path: str, given: Mapping[str, str], *, is_post: bool) -> Any:
    """Return the answer to a request as plain data or a text; None for an unknown path."""
    software = {"name": "LanguageTool", "version": "6.6", "buildDate": "", "premium": False}
    match path:
        case "check":
            return check_text(checker, given)
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
            return {"words": sorted(checker.words())}
        case "words/add" | "words/delete" if is_post:
            word = given.get("word", "").strip()
            if not word or len(word) > 100 or any(map(str.isspace, word)) or "#" in word:
                raise DataError(f"'word' must be one word, got {word[:80]!r}.")
            if path == "words/add":
                return {"added": checker.change_words(add=word)}
            return {"deleted": checker.change_words(remove=word)}
        case _:
            return None


def check_text(checker: Checker, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer to /v2/check."""
    language = given.get("language", "")
    code = "en-US" if language == "auto" else language
    names = {long: name for name, _, long in LANGUAGES}
    if code not in names:
        raise DataError(f"'language' must be auto or one of {', '.join(names)}, got {code[:40]!r}.")
    if ("text" in given) == ("data" in given):
        raise DataError("give either 'text' or 'data'.")
    parts = [(given["text"], None)] if "text" in given else list(read_annotation(given["data"]))
    source = AnnotatedText.of(parts)
    if len(source.text) > MAX_CHARACTERS:
        raise DataError(f"a text must have at most {MAX_CHARACTERS} characters.")
    is_picky = given.get("level") == "picky"
    edits = checker.edits(source.text, picky=is_picky) if is_enabled(given) else []
    sentences = [match.span() for match in _SENTENCE.finditer(source.text) if match[0]]
    detected = {"name": names[code], "code": code, "confidence": 1.0, "source": "given"}
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
        "warnings": {"incompleteResults": False},
        "language": {"name": names[code], "code": code, "detectedLanguage": detected},
        "matches": [match_of(source, edit, sentences) for edit in edits],
        "sentenceRanges": ranges,
        "extendedSentenceRanges": [
            {"from": a, "to": b, "detectedLanguages": [{"language": "en", "rate": 1.0}]}
            for a, b in ranges
        ],
    }


def is_enabled(given: Mapping[str, str]) -> bool:
    """Whether the parameters of a request leave spelling switched on."""

    def has(name: str, value: str) -> bool:
        return value in given.get(name, "").split(",")

    if given.get("enabledOnly") in ("true", "yes"):
        return has("enabledRules", RULE) or has("enabledCategories", CATEGORY)
    return not (has("disabledRules", RULE) or has("disabledCategories", CATEGORY))


def read_annotation(data: str) -> Iterator[tuple[str, str | None]]:
    """Yield the parts of the parameter `data`: (text, None) or (markup, what it is read as)."""
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError("'data' must be JSON.") from error
    value = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if isinstance(text := value.get("text"), str):
        yield _valid(text), None
        return
    parts = value.get("annotation")
    if not isinstance(parts, list):
        raise DataError("'data' must have 'text' or a list 'annotation'.")
    for part in cast("list[Any]", parts):
        row = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
        read_as = row.get("interpretAs", "")
        if isinstance(text := row.get("text"), str):
            yield _valid(text), None
        elif isinstance(markup := row.get("markup"), str) and isinstance(read_as, str):
            yield _valid(markup), _valid(read_as)
        else:
            raise DataError("a part of 'annotation' must have a string 'text' or 'markup'.")


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
    a, b = next((s for s in sentences if s[0] <= edit.start < s[1]), (edit.start, edit.stop))
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
        "sentence": source.text[a:b].strip(),
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
