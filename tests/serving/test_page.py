"""The demo page in a browser: what it shows is what the pipeline computes."""

import re

import pytest
from support.service import served

from gidd.pipeline.defaults import Examples
from gidd.serving.access import hash_key

TEXT = "🙂 I embrace the opportunity of peace."
PROTECTED = (16, 27)
"""Characters of "opportunity"."""

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def opened(browser, service):
    """Open the page; it may log no errors, ask nobody else and run no script of the text."""
    complaints, requests, contexts, origins = [], [], [], {"data:,"}

    def open_page(url=service.url, **options):
        origins.add(origin(url))
        context = browser.new_context(viewport={"width": 900, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: complaints.append("error: dialog"))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    # browsers log answers such as 401 themselves
    own = re.compile("error: (?!Failed to load resource: .* status of 4)")
    assert list(filter(own.match, complaints)) == []
    assert set(map(origin, requests)) <= origins


def origin(url: str) -> str:
    return re.sub(r"(?<=\d)/.*", "", url)


def test_the_page_opens_with_a_text_of_the_model(opened, service):
    page = opened()
    page.locator("#words:not([inert]) .word").first.wait_for()
    assert text_of(page) == Examples().mistakes
    page.fill("#text", "My own text.")
    page.dispatch_event("#model", "change")
    assert text_of(page) == "My own text."


def write(page, text: str) -> None:
    """Type a text, and wait until its words are shown."""
    page.fill("#text", text)
    page.locator("#text").blur()
    page.locator("#words:not([inert]) .word").first.wait_for()


def text_of(page) -> str:
    return page.input_value("#text")


def shown(text: str) -> str:
    """Return a text as the editor of a browser has it."""
    return text.replace("\r", "\n")


def wait_for(page, status: str) -> None:
    page.locator("#status", has_text=status).wait_for()


def words(page, name: str):
    """Return the words with this text; their labels also have a probability."""
    return page.locator(f"#words .word[aria-label^='{name} ']")


def test_a_correction_by_clicks_keeps_protected_words(opened, pipelines):
    pipe = pipelines["hybrid"]
    page = opened()
    write(page, TEXT)
    page.check("[value=protect]")
    words(page, "opportunity").click()
    assert "protected" in words(page, "opportunity").get_attribute("aria-label")
    page.click("text=Correct >> nth=0")
    wait_for(page, "forward passes")
    expected = pipe.correct(TEXT, protected=[PROTECTED])
    assert text_of(page) == expected.text != pipe.correct(TEXT).text
    assert TEXT[slice(*PROTECTED)] == "opportunity"
    assert "🙂 " in expected.text and " opportunity" in expected.text
    assert words(page, "opportunity").count() == 1
    assert page.locator("#words .kept").all_text_contents() == [" opportunity"]
    noise = expected.noise_level
    reading = page.text_content("#reading")
    assert reading == "{:.1f}% ({:.1f}% to {:.1f}%)".format(
        *(100 * rate for rate in (noise.error_rate, noise.low, noise.high))
    ).replace(".0%", "%")

    changes = page.locator("#changes li", has=page.locator("del"))
    assert changes.count() == len(expected.changes)
    assert page.locator("#words ins").count() >= len(expected.changes)
    first = expected.changes[0]
    changes.first.get_by_text("Undo").click()
    assert text_of(page) == first.old.join(
        [expected.text[: first.start], expected.text[first.start + len(first.new) :]]
    )
    assert page.locator("#words .kept").all_text_contents() == [" opportunity"]
    page.click("#undo")
    assert text_of(page) == TEXT


def test_an_infilling_by_keys(opened, pipelines):
    page = opened()
    page.focus("#text")
    page.keyboard.press("Control+A")
    page.keyboard.insert_text("Peace and plenty for all.")
    page.locator("#text").blur()
    words(page, "Peace").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("p")
    assert "protected" in page.evaluate("document.activeElement.ariaLabel")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator("#word button[aria-pressed=true]").count() == 1
    page.keyboard.press("b")
    assert text_of(page) == "Peace and[MASK:4] for all."
    page.fill("#steps", "6")
    page.keyboard.press("Control+Enter")
    wait_for(page, "1 blank filled")
    (expected,) = pipelines["hybrid"].infill(
        "Peace and[MASK:4] for all.", seed=1, steps=6, temperature=1.0
    )
    assert text_of(page) == expected.text
    assert page.locator("#words .kept").all_text_contents() == [" and"]


def test_samples_are_shown_while_they_change(opened, pipelines, goes_on):
    pipe = pipelines["hybrid"]
    page = opened()
    write(page, "Peace")
    page.fill("#tokens", "12")
    page.fill("#steps", "8")
    page.fill("#seed", "5")
    goes_on.clear()
    page.click("text=Generate")
    page.locator("#runs .mask").first.wait_for()
    assert page.locator("#runs .soft").first.text_content() == "step 1 of 8"
    goes_on.set()
    wait_for(page, "added")
    (expected,) = pipe.generate(prompt="Peace", max_tokens=12, steps=8, seed=5)
    assert text_of(page) == shown(expected.text)
    page.click("text=Self-correct")
    wait_for(page, "self-accuracy")
    expected = pipe.self_correct(expected.text, seed=5, forward_passes=8, temperature=0.1)
    assert text_of(page) == shown(expected.text)

    page.fill("#text", "Peace")
    page.check("#compare")
    page.fill("#steps2", "2")
    page.click("text=Generate")
    page.click("text=Use B")
    (expected,) = pipe.generate(prompt="Peace", max_tokens=12, steps=2, seed=5)
    assert text_of(page) == shown(expected.text)


def test_a_word_shows_its_probability_and_alternatives(opened, pipelines):
    page = opened()
    write(page, "Peace for all")
    words(page, "Peace").click()
    labels = page.locator("#word .row").nth(1).locator("button").all_text_contents()
    confidence = pipelines["hybrid"].score("Peace for all").confidence
    for text, p in zip(labels, confidence[:2], strict=True):
        name, found = text.split()
        assert name in ("Pe", "ace")
        assert (
            found == "<0.1%" if p < 0.001 else float(found[:-1]) == pytest.approx(100 * p, abs=0.06)
        )
    choice = page.locator("#word .row").nth(2).locator("button").first
    new = choice.text_content().split()[0]
    choice.click()
    assert text_of(page) in (f"{new}ace for all", f"Pe{new} for all")


def test_a_link_has_the_text_and_the_settings_but_no_key(opened):
    page = opened()
    write(page, TEXT + "\n" + HOSTILE)
    words(page, "embrace").focus()
    page.keyboard.press("p")
    page.fill("#seed", "7")
    page.check("#compare")
    page.locator("#noise").fill("0.2")
    page.locator("#access summary").click()
    page.fill("#key", "secret")
    page.select_option("#model", "masked")
    page.click("#share")
    assert "secret" not in page.url
    assert page.get_by_role("button", name="Correct", exact=True).is_disabled()
    other = opened(page.url)
    other.locator("#words .kept").wait_for()
    assert text_of(other) == TEXT + "\n" + HOSTILE
    assert other.locator("#words .kept").all_text_contents() == ["embrace"]
    assert other.input_value("#seed") == "7" and other.input_value("#noise") == "0.2"
    assert other.is_checked("#compare") and not other.is_checked("#auto")
    assert other.input_value("#model") == "masked"
    assert other.locator("img").count() == 0


def test_a_model_that_is_chosen_while_the_list_loads_stays(opened):
    page = opened()
    write(page, TEXT)
    held = []
    page.route("**/v1/models", lambda route: held.append(route))
    page.evaluate("for (const each of document.querySelectorAll('#model option')) each.lang = 'x'")
    page.locator("#access summary").click()
    page.fill("#key", "secret")
    page.keyboard.press("Enter")
    while not held:
        page.wait_for_timeout(10)
    page.select_option("#model", "masked")
    held[0].continue_()
    page.locator("#model option:not([lang])").first.wait_for(state="attached")
    assert page.input_value("#model") == "masked"
    assert page.locator("[data-run=correct]").is_disabled()


def test_a_run_is_stopped_and_mistakes_are_explained(opened):
    page = opened()
    write(page, TEXT)
    page.fill("#tokens", "12")
    page.fill("#steps", "4000")
    page.click("text=Generate")
    page.locator("#runs .mask").first.wait_for()
    with page.expect_event("requestfailed", lambda request: "completions" in request.url):
        page.keyboard.press("Escape")
    wait_for(page, "Stopped")
    assert text_of(page) == TEXT
    page.click("text=Fill blanks")
    wait_for(page, "no blanks")
    page.fill("#steps", "1")
    page.click("text=Self-correct")
    wait_for(page, "Steps: must be at least 2")
    assert text_of(page) == TEXT


def test_a_key_is_asked_for_and_kept_for_the_tab(opened, pipelines):
    with served(pipelines, keys={hash_key("secret"): "me"}) as service:
        page = opened(service.url)
        wait_for(page, "needs an API key")
        page.fill("#key", "secret")
        page.keyboard.press("Enter")
        page.locator("#words .word").first.wait_for()
        page.reload()
        page.locator("#words .word").first.wait_for()
        assert page.text_content("#status") == ""


def test_dark_and_narrow_screens(opened):
    page = opened(color_scheme="dark")
    write(page, TEXT + "m" * 20)
    page.click("#words .word >> nth=1")
    page.click("[data-run=correct]")
    page.locator("#changes li").first.wait_for()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", background))) < 64
    for width in (900, 320):
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
