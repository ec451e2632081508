"""The page that replays sampling: safe against hostile text, complete, and working in a browser."""

import base64
import hashlib
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from gidd.errors import ConfigError
from gidd.sampling import Frame
from gidd.viz.html import Replay, write_page

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--",
    "]]>",
    "&lt;b&gt;",
    "\u2028 '\"`${1}\\",
    "\x1b[2J",
    "plain ",
]
MASK = len(HOSTILE)
STATES = [
    [0, MASK, MASK, MASK, MASK],
    [0, 1, MASK, 2, 6],
    [0, 7, 3, 2, 6],
    [0, 7, 3, 4, 5],
]
VOID = {"meta", "link", "input", "br"}


def decoder(tokens):
    return [HOSTILE[token] if token != MASK else "[MASK]" for token in tokens]


def frame(step_index: int, tokens: list[int], step: str) -> Frame:
    z = torch.tensor(tokens)
    p = torch.linspace(0.001, 1, len(tokens))
    return Frame(step_index, step, 1 - step_index / 3, z, p, p, (z + 1) % MASK, p.sqrt())


def bytes_of_a_character(tokens):
    """Tokens 0 and 1 are the bytes of é: adjacent, they have one text, assigned to the first."""
    texts = ["\ufffd\ufffdabcdef"[token % MASK] for token in tokens]
    for i, pair in enumerate(itertools.pairwise(tokens)):
        if pair == (0, 1):
            texts[i : i + 2] = ["é", ""]
    return texts


def write(path: Path, *, kind="sample", num=1, states=STATES, decoder=decoder) -> str:
    steps = [*["ancestral"] * (len(states) - 1), "end"]
    replays = [
        Replay(
            f"{number} {HOSTILE[1]}",
            [frame(k, *state) for k, state in enumerate(zip(states, steps, strict=True))],
            [True, False, False, False, False],
        )
        for number in range(num)
    ]
    write_page(
        path,
        replays,
        decoder,
        MASK,
        kind=kind,
        title=HOSTILE[0],
        about=HOSTILE[1],
        text="".join(HOSTILE),
        manifest={"prompt": HOSTILE[0]},
    )
    return path.read_text(encoding="utf-8")


class Reader(HTMLParser):
    """Collects elements, attributes and texts; every element must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.elements, self.texts = [], [], {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def test_the_page_is_self_contained_and_text_is_data(tmp_path):
    page = write(tmp_path / "page.html")
    found = Reader(page)
    names = [name for name, _ in found.elements]
    assert names.count("script") == 2
    assert "img" not in names
    assert not any(key.startswith("on") for _, attrs in found.elements for key in attrs)
    links = [v for _, a in found.elements for k, v in a.items() if k in ("src", "href", "action")]
    assert links == ["data:,"]
    urls = set(re.findall(r"[a-z]+://[^\"' ]+", page))
    assert urls == {"http://www.w3.org/2000/svg"}  # a namespace, not an address
    data = json.loads(found.texts["script"][0])
    assert data["manifest"]["prompt"] == HOSTILE[0]
    assert set(HOSTILE[:6]) <= set(data["strings"])
    assert found.texts["title"] == [HOSTILE[0]]
    assert found.texts["pre"][0] == "".join(HOSTILE)


def test_the_policy_allows_only_this_script_and_style(tmp_path):
    found = Reader(write(tmp_path / "page.html"))
    (policy,) = [a["content"] for _, a in found.elements if "http-equiv" in a]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag, place in (("script", 1), ("style", 0)):
        digest = hashlib.sha256(found.texts[tag][place].encode()).digest()
        assert f"'sha256-{base64.b64encode(digest).decode()}'" in policy


def test_pages_without_frames_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="record_frames=True"):
        write_page(
            tmp_path / "page.html",
            [Replay("", [], [])],
            decoder,
            MASK,
            kind="sample",
            title="",
            about="",
            text="",
            manifest={},
        )


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page; it may log no errors, make no requests and run no script of the text."""
    complaints, requests = [], []

    def open_page(**options):
        path = tmp_path / "page.html"
        write(path, **options)
        page = browser.new_page(viewport={"width": 900, "height": 800})
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append("dialog"))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_page
    assert complaints == []
    assert {url.partition(":")[0] for url in requests} <= {"file", "data"}


def canvas(page) -> str:
    return page.text_content("#canvas")


@pytest.mark.slow
def test_a_browser_shows_every_step(opened):
    page = opened()
    assert canvas(page) == HOSTILE[0]
    assert page.locator("#canvas .mask").count() == 4
    assert "step 0 of 3" in page.text_content("#status")
    page.fill("#slider", "1")
    assert canvas(page) == HOSTILE[0] + HOSTILE[1] + HOSTILE[2] + HOSTILE[6]
    assert page.locator("#canvas .fresh").count() == 3
    page.click("h1")
    page.keyboard.press("ArrowRight")
    assert page.locator("#canvas .changed").text_content() == HOSTILE[7]
    assert "1 written · 1 replaced" in page.text_content("#status")
    page.keyboard.press("End")
    assert "the end" in page.text_content("#status")
    page.keyboard.press("ArrowRight")
    assert "step 3 of 3" in page.text_content("#status")
    page.keyboard.press("Home")
    assert "step 0 of 3" in page.text_content("#status")
    page.click("#play")
    page.locator("#status", has_text="the end").wait_for()
    assert page.text_content("#play") == "▶ Play"
    assert page.locator("#canvas script, #canvas img").count() == 0


def test_a_browser_shows_replacements_tooltips_and_curves(opened):
    page = opened(kind="correct")
    assert page.text_content("#count") == "3"
    assert page.locator("#events del").first.text_content() == HOSTILE[1]
    assert page.locator("#events ins").first.text_content() == HOSTILE[7]
    page.locator("#events button").first.click()
    assert "step 2 of 3" in page.text_content("#status")
    assert page.is_checked("#marks")
    page.fill("#slider", "3")
    assert page.locator("#canvas del:visible").count() == 0  # they were blank in the first state
    page.uncheck("#marks")
    page.locator("#canvas .token").nth(1).hover()
    assert "most likely: " in page.text_content("#tip")
    assert HOSTILE[1] in page.text_content("#tip")
    for curve in ("accuracy", "entropy"):
        points = page.get_attribute(f"#{curve} polyline", "points")
        assert len(points.split()) == 4
    box = page.locator("#entropy").bounding_box()
    page.mouse.click(box["x"] + 0.1 * box["width"], box["y"] + 0.5 * box["height"])
    assert "step 0 of 3" in page.text_content("#status")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert json.loads(page.text_content("#manifest")) == {"prompt": HOSTILE[0]}


def test_a_browser_marks_neighbours_together(opened):
    """On a page of samples; a correction is compared with its first state."""
    page = opened()
    page.fill("#slider", "3")
    assert page.locator("#canvas del:visible").count() == 0
    page.check("#marks")
    assert page.locator("#canvas del:visible").all_text_contents() == [
        HOSTILE[1],
        HOSTILE[2] + HOSTILE[6],
    ]
    assert page.locator("#canvas .marked").count() == 3


def test_a_browser_counts_tokens_and_not_their_texts(opened):
    """The text of a byte depends on its neighbour, but the token is the same."""
    states = [
        [2, MASK, MASK, 2, 2],
        [2, MASK, 1, 2, 2],
        [2, 0, 1, 2, 2],
        [2, 0, 3, 2, 2],
        [2, 0, 1, 2, 3],
    ]
    page = opened(kind="correct", states=states, decoder=bytes_of_a_character)
    assert page.text_content("#count") == "3"
    assert page.locator("#events li").all_text_contents() == [
        "step 3 b 50%",
        "step 4b  50%",
        "step 4a b 100%",
    ]
    assert page.locator("#canvas del:visible").all_text_contents() == ["a"]
    page.fill("#slider", "2")
    assert canvas(page) == "aéaa"
    assert "1 written · 0 replaced" in page.text_content("#status")
    assert page.locator("#canvas .fresh").all_text_contents() == ["é"]
    assert page.locator("#canvas .changed").count() == 0
    page.fill("#slider", "3")
    assert canvas(page) == "a\ufffdbaa"
    assert page.locator("#canvas .changed").all_text_contents() == ["b"]


def test_a_browser_can_choose_among_sequences(opened):
    page = opened(num=3)
    assert page.is_visible("#picker")
    page.fill("#slider", "3")
    page.select_option("#replay", "2")
    assert "step 0 of 3" in page.text_content("#status")
