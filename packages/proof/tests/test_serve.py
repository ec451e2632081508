"""`gidd-proof serve`: the HTTP protocol of LanguageTool, with clients that people use."""

import gc
import http.client
import json
import random
import shutil
import socket
import subprocess
import threading
from contextlib import closing, contextmanager
from functools import partial
from urllib.parse import urlencode

import pytest
from gidd_proof import serve
from gidd_proof.serve import (
    AnnotatedText,
    Checker,
    TimedReader,
    find_sentences,
    make_server,
    utf16_length,
)

from gidd.errors import LimitReached

TEXT = "The 🙂 peopel came togehter."
PROGRAM = {"X-Requested-With": "test"}
PAGE_OF_MINE = "https://good.example"


@contextmanager
def serving(proofreader, folder, allow_origin):
    checker = Checker(proofreader, folder / "words")
    with make_server(checker, "127.0.0.1", 0, allow_origin) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def server(proofreader, tmp_path_factory):
    with serving(proofreader, tmp_path_factory.mktemp("words"), "*") as server:
        yield server


def request(server, path, form=None, method=None, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    headers = {"Content-Type": "application/x-www-form-urlencoded"} | (headers or {})
    body = urlencode(form, doseq=True) if form is not None else body
    with closing(connection):
        connection.request(method or ("GET" if body is None else "POST"), path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers


def check(server, **form):
    return whole_answer(server, **form)["matches"]


def whole_answer(server, **form):
    status, body, _ = request(server, "/v2/check", {"language": "en-US"} | form)
    assert status == 200, body
    return json.loads(body)


def utf16(text, match):
    """Return what JavaScript sees at a match."""
    units = text.encode("utf-16-le")
    return units[2 * match["offset"] : 2 * (match["offset"] + match["length"])].decode("utf-16-le")


def test_offsets_are_utf16_units(server):
    matches = check(server, text=TEXT)
    assert [utf16(TEXT, match) for match in matches] == ["peopel", "togehter"]
    first = matches[0]
    assert first["replacements"][0]["value"] == "people"
    assert utf16(first["context"]["text"], first["context"]) == "peopel"
    assert {"shortMessage", "message", "sentence", "type", "rule"} <= first.keys()
    assert first["rule"]["id"] and first["rule"]["category"]["id"]


def test_markup_does_not_shift_mistakes(server):
    parts = [
        {"text": " " * 8},
        {"markup": "<p>", "interpretAs": "\n\n"},
        {"text": "The 🙂 "},
        {"markup": "<b class='🙂'>"},
        {"text": "peo"},
        {"markup": "</b>"},
        {"text": "pel came."},
    ]
    whole = "".join(part.get("text", part.get("markup")) for part in parts)
    (match,) = check(server, data=json.dumps({"annotation": parts}))
    assert utf16(whole, match) == "peo</b>pel"
    (match,) = check(server, data=json.dumps({"text": "The peopel came."}))
    assert match["offset"] == 4


def test_the_places_of_annotated_text():
    source = AnnotatedText.of([("a🙂", None), ("<x>", "\n"), ("b", None)])
    assert source == ("a🙂\nb", [0, 1, 6, 6], [1, 3, 6, 7])
    assert utf16_length("a🙂") == 3


def test_rules_can_be_switched_off(server):
    rule = serve.RULE
    for fields in (
        {"disabledCategories": "A, TYPOS"},
        {"disabledRules": rule},
        {"enabledCategories": "TYPOS", "disabledRules": rule},
        {"enabledOnly": "yes", "enabledRules": "OTHER"},
    ):
        assert check(server, text=TEXT, **fields) == [], fields
    for fields in (
        {"disabledCategories": "TYPOS", "enabledRules": rule},
        {"enabledOnly": "true", "enabledCategories": "TYPOS"},
        {"enabledOnly": "false", "enabledRules": "OTHER", "disabledRules": "OTHER"},
    ):
        assert len(check(server, text=TEXT, **fields)) == 2, fields
    assert check(server, text="") == []


def test_the_answer_names_the_fields_that_have_no_effect(server):
    fields = {"motherTongue": "de", "apiKey": "secret", "username": "", "disabledRules": "A"}
    data = json.dumps({"text": TEXT, "metaData": {}})
    answer = whole_answer(server, data=data, enabledCategories="GRAMMAR", **fields)
    assert answer["warnings"] == {
        "incompleteResults": False,
        "ignoredParameters": [
            *("apiKey", "data.metaData", "disabledRules", "enabledCategories", "motherTongue")
        ],
    }
    assert "secret" not in json.dumps(answer)
    words = {"word": "Xyz", "dict": "b"}
    added = json.loads(request(server, "/v2/words/add", words, headers=PROGRAM)[1])
    assert added == {"added": True, "warnings": {"ignoredParameters": ["dict"]}}
    assert json.loads(request(server, "/v2/words?offset=0&limit=1")[1]) == {"words": ["Xyz"]}
    assert json.loads(request(server, "/v2/words?offset=1")[1]) == {"words": []}
    request(server, "/v2/words/delete", words, headers=PROGRAM)


def test_the_language_is_detected_from_the_text(server):
    german, english = "Das ist ein Haus und ich gehe jetzt. ", "The peopel are here. "
    for text, fields, code, detected, confidence in (
        (german, {"language": "auto"}, "en-US", "de", 1.0),
        (english, {"language": "auto", "preferredVariants": "de-DE, en-GB"}, "en-GB", "en-GB", 1.0),
        (german * 2 + english, {"language": "auto"}, "en-US", "de", 0.779),
        ("Oj vbwt kqzr mfpj xhdk lqtz vwcn.", {"language": "auto"}, "en-US", "und", 1.0),
        (german, {"language": "en-AU"}, "en-AU", "en-AU", None),
    ):
        answer = whole_answer(server, text=text, **fields)
        language = answer["language"]
        assert language["code"] == code
        assert language["detectedLanguage"]["code"] == detected
        assert language["detectedLanguage"].get("confidence") == confidence
        assert len(answer["matches"]) == (english in text)
        assert answer["extendedSentenceRanges"][0]["detectedLanguages"] == []


def test_more_places_are_reported_to_the_picky(server):
    text = "The colour of a color is a color."
    assert len(check(server, text=text, level="picky")) > len(check(server, text=text))


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("See example.com now. Next", ["See example.com now. ", "Next"]),
        ("It is 3.5 m, e.g. so?! Yes", ["It is 3.5 m, e.g. ", "so?! ", "Yes"]),
        ("a\n\n b.c\n", ["a\n\n ", "b.c\n"]),
        ("\n a", ["\n ", "a"]),
        ("...", ["..."]),
        ("", []),
    ],
)
def test_sentences_end_at_a_line_break_or_before_a_space(server, text, sentences):
    spans = find_sentences(text)
    assert [text[start:stop] for start, stop in spans] == sentences
    assert whole_answer(server, text=text)["sentenceRanges"] == [list(span) for span in spans]


def test_a_match_has_its_sentence(server):
    (match,) = check(server, text="See a.b.com now. The peopel of example.org came. Next.")
    assert match["sentence"] == "The peopel of example.org came."


def test_the_answer_grows_as_the_text_however_long_its_sentences_are(server):
    """Each of the matches repeated the whole sentence: 100 kB of text gave a gigabyte."""
    texts = ["the the " * n for n in (200, 400)]
    short, long = (len(json.dumps(whole_answer(server, text=text))) for text in texts)
    assert len(check(server, text=texts[0])) == 200 and long < 2.3 * short
    (match,) = check(server, text="x " * 999 + "the peopel " + "x " * 999)
    assert "the peopel x" in match["sentence"] and len(match["sentence"]) < 1010


@pytest.mark.parametrize("unit", ["a", "~", "`", "\\cite[", "aA", "a.b"])
def test_long_texts_of_one_kind_take_no_more_than_linear_time(server, unit):
    """Each took minutes: protected spans or sentences took the square of the length."""
    text = (unit * serve.MAX_CHARACTERS)[: serve.MAX_CHARACTERS - 2] + "_b"
    assert check(server, text=text) is not None


def test_a_request_ends_in_time_and_others_go_on(proofreader, tmp_path, monkeypatch):
    checker = Checker(proofreader, tmp_path / "words", seconds=1e-6)
    for text in (TEXT, TEXT * 1000):
        with pytest.raises(LimitReached, match="not read within"):
            checker.edits(text)
    checker = Checker(proofreader, tmp_path / "words", seconds=0.01)
    with checker._turn(), pytest.raises(LimitReached, match="--seconds 0.01"):
        checker.change_words(add="word")
    assert checker.change_words(add="word")
    with serving(proofreader, tmp_path, None) as server:
        monkeypatch.setattr(Checker, "edits", checker_out_of_time)
        assert request(server, "/v2/check", {"language": "en", "text": "a"})[0] == 503


def checker_out_of_time(*_, **__):
    raise LimitReached("the text was not read within 1 s.")


def test_a_client_that_sends_slowly_is_not_waited_for(monkeypatch):
    """Each byte comes in time, and all of them do not."""
    clock = iter(range(100))
    monkeypatch.setattr(serve, "monotonic", lambda: next(clock))
    here, there = socket.socketpair()
    with here, there:
        reader = TimedReader(here, 5.5)
        there.sendall(b"abcdefgh")
        assert [reader.read(1) for _ in range(5)] == [b"a", b"b", b"c", b"d", b"e"]
        with pytest.raises(TimeoutError):
            reader.read(1)


def test_words_are_added_and_deleted(server):
    add = partial(request, server, "/v2/words/add", headers=PROGRAM)
    status, body, _ = add({"word": "peopel"})
    assert (status, json.loads(body)) == (200, {"added": True})
    assert json.loads(request(server, "/v2/words")[1])["words"] == ["peopel"]
    assert len(check(server, text=TEXT)) == 1
    deleted = request(server, "/v2/words/delete", {"word": "peopel"}, headers=PROGRAM)
    assert json.loads(deleted[1])["deleted"]
    assert len(check(server, text=TEXT)) == 2
    for word in ("two words", "a\u200bb", "\x1b[31m", ""):
        assert add({"word": word})[0] == 400


def test_other_addresses(server):
    codes = [row["longCode"] for row in json.loads(request(server, "/v2/languages")[1])]
    assert {"en-US", "en-GB"} <= set(codes)
    for path in ("/v2/maxtextlength", "/v2/healthcheck", "/v2/info", "/v2/configinfo?language=en"):
        assert request(server, path)[0] == 200
    status, _, headers = request(server, "/v2/check", method="OPTIONS")
    assert (status, headers["Access-Control-Allow-Origin"]) == (204, "*")
    assert request(server, "/v2/nothing")[0] == 404


@pytest.mark.parametrize(
    "form",
    [
        {"text": "a"},
        {"language": "xx", "text": "a"},
        {"language": "en"},
        {"language": "en", "text": "a", "data": "{}"},
        {"language": "en", "data": "{"},
        {"language": "en", "data": "[" * 100_000},
        {"language": "en", "data": '{"annotation": [1]}'},
        {"language": "en", "data": '{"annotation": [{"markup": 1}]}'},
        {"language": "en", "text": "a" * 100_001},
        {"language": "en", "text": "a", "level": "strict"},
        {"language": "en", "text": "a", "enabledOnly": "maybe"},
        {"language": "en", "text": "a", "enabledOnly": "true"},
        {"language": "en", "text": "a", "enabledOnly": "true", "disabledRules": "A"},
        {"language": "en", "text": "a", "preferredVariants": "en-GB"},
        {"language": ["en", "en-US"], "text": "a"},
        {"language": "en", "data": '{"text": "a", "annotation": []}'},
        {"language": "en", "data": '{"annotation": [{"text": "a", "markup": "b"}]}'},
        {"language": "en", "data": '{"annotation": [{"text": "a", "interpretAs": "b"}]}'},
    ],
)
def test_mistakes_of_clients_are_status_400(server, form):
    status, body, _ = request(server, "/v2/check", form)
    assert status == 400
    assert body.startswith("Error: ")


@pytest.mark.parametrize("path", ["check", "words/add"])
def test_bytes_that_are_no_text_and_other_methods_are_refused(server, path):
    """The bytes were replaced by U+FFFD, which was checked and added as a word."""
    fields = "language=en&text=%ff" if path == "check" else "word=%ed%a0%80"
    for address, body in ((path, fields), (f"{path}?{fields}", "")):
        status, answer, _ = request(server, f"/v2/{address}", body=body.encode(), headers=PROGRAM)
        assert status == 400 and answer.startswith("Error: ")
    status, answer, _ = request(server, f"/v2/{path}?{fields}", method="PUT", headers=PROGRAM)
    assert status == 405 and answer.startswith("Error: ")


@pytest.mark.parametrize(
    ("allowed", "origins"),
    [
        (None, {PAGE_OF_MINE: 403}),
        (PAGE_OF_MINE, {PAGE_OF_MINE: 200, PAGE_OF_MINE + ":1": 403, "http://good.example": 403}),
        ("*", {PAGE_OF_MINE: 403}),
    ],
)
def test_only_the_allowed_page_reads_and_changes_words(proofreader, tmp_path, allowed, origins):
    refused = ("null", "file://", "HTTP://a.example", "moz-extension://x", "")
    with serving(proofreader, tmp_path, allowed) as server:
        for origin, status in (dict.fromkeys(refused, 403) | origins).items():
            page = {"Origin": origin} | PROGRAM
            form = {"word": "x"}
            found = [
                request(server, "/v2/words/add", form, headers=page)[0],
                request(server, "/v2/words", headers=page)[0],
                request(server, "/v2/words/add", method="OPTIONS", headers=page)[0],
            ]
            assert found == [status, status, 204 if status == 200 else 403], origin
            checked = request(server, "/v2/check?language=en&text=a", headers=page)[0]
            assert checked == (200 if allowed == "*" else status)
        headers = request(server, "/v2/languages")[2]
        assert headers["Access-Control-Allow-Origin"] == allowed
        assert request(server, "/v2/words/add", {"word": "y"})[0] == 403  # a form has no header
        assert "y" not in json.loads(request(server, "/v2/words")[1])["words"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8081", 200),
        ("localhost", 200),
        ("[::1]:80", 200),
        ("192.168.0.7", 200),
        ("evil.example:8081", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
        ("[", 403),
    ],
)
def test_a_name_that_is_bound_to_this_address_is_refused(server, host, status):
    for path in ("/v2/languages", "/v2/words", "/v2/check?language=en&text=a", "/v2/healthcheck"):
        assert request(server, path, headers={"Host": host})[0] == status
    preflight = request(server, "/v2/check", method="OPTIONS", headers={"Host": host})[0]
    assert preflight == (204 if status == 200 else 403)


def test_fuzzed_requests_are_answered_without_a_server_error(server):
    """No 5xx and no hang."""
    numbers = random.Random(0)
    names = ["text", "data", "language", "level", "enabledOnly", "word", "disabledRules", "x"]
    values = [
        "",
        "en",
        "en-US",
        "auto",
        "The peopel",
        "🙂\ud800"[:1],
        '{"annotation":[{}]}',
        "\x00",
    ]
    values += ['{"annotation":[{"text":"\\ud800 peopel"}]}', "true", "picky", "%", "TYPOS"]
    values += [text * 20_000 for text in ("a", "`", "::", "<code>"[:5], "a/", "\\(")]
    paths = ["check", "words", "words/add", "words/delete", "languages", "info", "..", "%00", ""]
    for _ in range(2000):
        path = numbers.choice(["/v2/", "/", "//"]) + numbers.choice(paths)
        form = {numbers.choice(names): numbers.choice(values) for _ in range(numbers.randrange(5))}
        body = urlencode(form).encode()
        if numbers.random() < 0.3:
            body = bytes(numbers.randrange(256) for _ in range(numbers.randrange(60)))
        if numbers.random() < 0.3:
            path += "?" + urlencode(form)
        method = numbers.choice(["POST", "POST", "GET", "OPTIONS"])
        try:
            status, _, _ = request(server, path, method=method, body=body)
        except (BrokenPipeError, ConnectionResetError) as error:
            # a request that is too long, or has a body without need, is not read to its end
            assert len(path) + len(body) > 10_000
            assert not isinstance(error, http.client.RemoteDisconnected)
            continue
        assert status < 500, (method, path[:80], body[:80])
    assert check(server, text=TEXT)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the client leaves its socket open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_language_tool_python(server, proofreader):
    """The client that Python programs use."""
    client = pytest.importorskip("language_tool_python")
    url = f"http://127.0.0.1:{server.server_port}"
    with client.LanguageTool("en-US", remote_server=url) as tool:
        matches = tool.check(TEXT)
        assert [TEXT[m.offset : m.offset + m.error_length] for m in matches] == [
            "peopel",
            "togehter",
        ]
        assert matches[0].replacements[0] == "people"
        assert tool.correct(TEXT) == proofreader.correct(TEXT).text
    del tool, matches
    gc.collect()


PAGE = """<!doctype html><textarea id=t>The 🙂 peopel came togehter.</textarea><p id=out></p>
<script>
const text = document.getElementById("t").value
fetch("http://127.0.0.1:%d/v2/check", {method: "POST",
  body: new URLSearchParams({language: "en-US", text})})
  .then(answer => answer.json()).then(found => {
    let fixed = text
    for (const m of found.matches.reverse())
      fixed = fixed.slice(0, m.offset) + m.replacements[0].value + fixed.slice(m.offset + m.length)
    document.getElementById("out").textContent = fixed })
</script>"""


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Debian's chromium")
def test_a_page_in_a_browser(server, tmp_path):
    """A text area is checked from another origin, and JavaScript's offsets are right."""
    (tmp_path / "page.html").write_text(PAGE % server.server_port)
    flags = "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run"
    command = ["chromium", *flags.split(), f"--user-data-dir={tmp_path}/data"]
    command += ["--virtual-time-budget=20000", "--dump-dom", f"file://{tmp_path}/page.html"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    assert '<p id="out">The 🙂 people came together.</p>' in shown
