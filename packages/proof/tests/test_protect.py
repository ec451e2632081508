"""Text that is never changed."""

import pytest
from gidd_proof.protect import protected_spans


def kept(text: str) -> str:
    """Return the text with a dot for every character that may change."""
    shown = ["."] * len(text)
    for start, stop in protected_spans(text):
        shown[start:stop] = text[start:stop]
    return "".join(shown)


@pytest.mark.parametrize(
    "protected",
    [
        "`pip instal x`",
        "``a`b``",
        "https://exmaple.com/fooo?q=1",
        "www.exmaple.com",
        "me.too@exmaple.org",
        "/usr/lcoal/bin",
        "~/notes/letter",
        "./biuld",
        "src/foo/baz.py",
        "LICENSE.txt",
        "C:\\Windoes\\x",
        "p99",
        "3rd",
        "snake_csae",
        "TLS",
        "JavaScirpt",
        "iPhnoe",
        "NASA's"[:4],
        '<a hrfe="peopel">',
        "<code>pip instal</code>",
        "&nbps;",
        "\\textbf",
        "\\cite[see]{smtih}",
        "$x_i + peopel$",
        "\\(a pelope\\)",
        ":clss:`Peopel`",
        "@usre",
        "#hashtga",
    ],
)
def test_code_addresses_paths_and_names(protected):
    text = f"see {protected} there"
    assert kept(text) == f"....{protected}......"


def test_fenced_code():
    text = "a\n```bash\npip instal\n```\nb\n  ~~~~\ncdoe\n~~~~\nc"
    assert kept(text).replace(".", "") == "```bash\npip instal\n```  ~~~~\ncdoe\n~~~~"
    assert kept("a\n```\nnever closed").startswith("..```")


def test_markup_at_the_beginning_of_lines():
    assert kept("---\ntitel: x\n---\nabc").startswith("---\ntitel: x\n---")
    assert kept(".. code-blok:: x\nabc").startswith(".. code-blok:: x")
    assert kept(":autor: abc").startswith(":autor:")
    assert kept("[a lnik](htpp.x 'y')")[:7] == "......." and "](" in kept('[a](b "titel")')
    assert kept("[nmae]: ./x.md").startswith("[nmae]: ./x.md")


@pytest.mark.parametrize(
    "text",
    [
        "A man, and/or his dog.",
        "I don't. We do",
        "Hello there.Next one",
        "a ` b",
        "",
        "a < b and c > d",
        "It costs $ or euros, $ again",
    ],
)
def test_ordinary_words_may_change(text):
    assert not kept(text).strip(".")
