"""The commands of the documents: their options exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from gidd import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OF_A_PLUGIN = "examples/plugin"
"""Blocks with components of an example that is not installed."""


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every `gidd` command, also after `torchrun ... -m gidd.cli`."""
    for block in re.findall(r"```bash\n(.*?)```", text, re.S):
        if OF_A_PLUGIN in block:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|\||;(?=\s)", line):
                try:
                    words = shlex.split(part, comments=True)
                except ValueError:
                    continue  # a text over several lines
                if words[:1] == ["gidd"] or "gidd.cli" in words:
                    start = words.index("gidd.cli") if "gidd.cli" in words else 0
                    yield [re.sub(r".*/run\.yaml", "nano", word) for word in words[start + 1 :]]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_of_the_commands_exist(page, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "320")  # wide, so that no name is broken into lines
    for words in commands(page.read_text()):
        options = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, "--help"])
        shown = capsys.readouterr()
        assert not ended.value.code, (words, shown.err)
        missing = options - set(re.findall(r"--[\w.-]+", shown.out))
        assert not missing, (words, missing)


@pytest.mark.slow
def test_the_tour_of_the_readme(capsys):
    """The commands on the packaged model run; what it writes depends on the rounding of a CPU."""
    block = re.search(r"```bash\n(gidd demo.*?)```", PAGES[0].read_text(), re.S)
    shown = ""
    for words in commands(block[0]):
        cli.main(words)
        shown += capsys.readouterr().out
    assert "4. It fills blanks" in shown and "Once upon a time" in shown
    assert re.search(r"Tom had a big red.+\. He .+ every day\.", shown)
    assert re.search(r"NELBO +\d", shown)
