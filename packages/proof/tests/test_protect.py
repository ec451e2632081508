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
        "\\verb|lmbda x|",
        "$$ lmbda $$",
        "retreive_cfg(pth, defualt=None)",
        "mian()",
    ],
)
def test_code_addresses_paths_and_names(protected):
    text = f"see {protected} there"
    assert kept(text) == f"....{protected}......"


def test_fenced_code():
    text = "a\n```bash\npip instal\n```\nb\n  ~~~~\ncdoe\n~~~~\nc"
    assert kept(text).replace(".", "") == "```bash\npip instal\n```  ~~~~\ncdoe\n~~~~"
    assert kept("a\n```\nnever closed").startswith("..```")


@pytest.mark.parametrize(
    "line",
    [
        "\\begin{verbatim}\nlmbda x\n\\end{verbatim}",
        "\\begin{lstlisting}[language=C]\nlmbda x\n\\end{lstlisting}",
        "\\begin{minted}{python}\nlmbda x\n\\end{minted}",
        "\\begin{align*}\nlmbda &= x\n\\end{align*}",
        "import os, sys",
        "from fo.baz import x",
        "#include <stdoi.h>",
        "def mian(argv):",
        "fi (pth) {",
        "retrun (defualt);",
        "defualt = pth",
        "| stdev | flaot | 1 |",
    ],
)
def test_lines_of_code_and_of_tables_of_names(line):
    assert kept(f"See\n{line}\nthere").strip(".").startswith(line.rstrip("}"))


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
        "The mistake(s) of people(s); we import cars and goods from there",
        "| Its name | a row of a table with more words |",
        "It costs $ or euros, $ again",
    ],
)
def test_ordinary_words_may_change(text):
    assert not kept(text).strip(".")
