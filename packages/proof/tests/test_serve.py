"""`gidd-proof serve`: the HTTP protocol of LanguageTool, with clients that people use."""

import gc
import http.client
import json
import random
import shutil
import subprocess
import threading
from contextlib import closing
from urllib.parse import urlencode

import pytest
from gidd_proof.serve import AnnotatedText, Checker, make_server, utf16_length

TEXT = "The 🙂 peopel came togehter."


@pytest.fixture(scope="module")
def server(proofreader, tmp_path_factory):
    checker = Checker(proofreader, tmp_path_factory.mktemp("words") / "words")
    with make_server(checker, "127.0.0.1", 0, "*") as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


def request(server, path, form=None, method=None, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    headers = {"Content-Type": "application/x-www-form-urlencoded"} | (headers or {})
    body = urlencode(form) if form is not None else body
    with closing(connection):
        connection.request(method or ("GET" if body is None else "POST"), path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers


def check(server, **form):
    status, body, _ = request(server, "/v2/check", {"language": "en-US"} | form)
    assert status == 200, body
    return json.loads(body)["matches"]


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
    assert check(server, text=TEXT, disabledCategories="A,TYPOS") == []
    assert check(server, text=TEXT, enabledOnly="true", enabledRules="OTHER") == []
    assert check(server, text="") == []


def test_words_are_added_and_deleted(server):
    status, body, _ = request(server, "/v2/words/add", {"word": "peopel"})
    assert (status, json.loads(body)) == (200, {"added": True})
    assert json.loads(request(server, "/v2/words")[1])["words"] == ["peopel"]
    assert len(check(server, text=TEXT)) == 1
    assert json.loads(request(server, "/v2/words/delete", {"word": "peopel"})[1])["deleted"]
    assert len(check(server, text=TEXT)) == 2
    assert request(server, "/v2/words/add", {"word": "two words"})[0] == 400


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
    ],
)
def test_mistakes_of_clients_are_status_400(server, form):
    status, body, _ = request(server, "/v2/check", form)
    assert status == 400
    assert body.startswith("Error: ")


def test_web_pages_change_no_words_by_default(proofreader, tmp_path):
    checker = Checker(proofreader, tmp_path / "words")
    with make_server(checker, "127.0.0.1", 0, None) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        page = {"Origin": "https://example.org"}
        assert request(found, "/v2/words/add", {"word": "x"}, headers=page)[0] == 403
        assert "Access-Control-Allow-Origin" not in request(found, "/v2/languages")[2]
        found.shutdown()


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
