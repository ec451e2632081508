"""One list of names: the registry, the command line, files and docs/howto agree on it."""

import re
from pathlib import Path

import pytest
from support.registrations import run_gidd

from gidd.common.config.codec import component_from_plain
from gidd.common.config.registry import KINDS, builtin_components, component_names
from gidd.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs"
KINDS_PAGE = (DOCS / "extending.md").read_text()
PAGES = [path.read_text() for path in sorted((DOCS / "howto").glob("*.md"))]
FLAGS = {
    "schedule": ("train", "--noise"),
    "weighting": ("train", "--weighting"),
    "backbone": ("train", "--backbone"),
    "objective": ("train", "--objective"),
    "optimizer": ("train", "--optimizer"),
    "metric": ("samples", "--metric"),
    "step": ("sample", "--sampler"),
    "corrector": ("sample", "--final-corrector"),
}


@pytest.fixture(scope="module")
def printed():
    """What the commands print."""
    commands = {
        "train": ("train", "nano", "--help"),
        "sample": ("sample", "--help"),
        "samples": ("eval", "samples", "--help"),
        "list": ("data", "list"),
    }
    done = {name: run_gidd(*words) for name, words in commands.items()}
    assert all(one.returncode == 0 for one in done.values())
    return {name: one.stdout for name, one in done.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FLAGS)
def test_help_offers_the_registered_names(kind, printed):
    command, flag = FLAGS[kind]
    (choices,) = re.findall(rf"{flag} \{{([^}}]*)\}}", printed[command])
    assert choices.split(",") == component_names(kind)


def test_the_list_of_corpora_has_the_registered_names(printed):
    rows = re.findall(r"^│ (\S+) ", printed["list"], re.M)
    assert rows == [*component_names("corpus"), "PATH", "hf:ORG/NAME"]


@pytest.mark.parametrize("kind", KINDS)
def test_files_may_have_the_registered_names(kind):
    with pytest.raises(ConfigError) as refused:
        component_from_plain(kind, {"kind": "no such name"}, "component")
    (names,) = re.findall(r"must be one of (.*), got", str(refused.value))
    assert names.split(", ") == component_names(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_lists_the_parts_of_gidd(kind):
    """A component that is added without a row here is not documented."""
    (page,) = [page for page in PAGES if f"(`{kind}`)\n" in page]
    after = page.partition(f"(`{kind}`)\n")[2]
    rows = re.findall(r"^\| `([^`]+)` \| \S", after.partition("\n## ")[0], re.M)
    assert rows == list(builtin_components(kind))


def test_the_page_lists_the_kinds():
    rows = re.findall(r"^\| \[`(\w+)`\]", KINDS_PAGE, re.M)
    assert rows == list(KINDS)


def test_every_kind_has_an_example_of_a_few_lines():
    """They are run by tests/test_package.py."""
    blocks = re.findall(r"```python\n(.*?)```", "\n".join(PAGES), re.S)
    for kind in KINDS:
        (example,) = [block for block in blocks if f'register("{kind}"' in block]
        lines = example.partition("@gidd.register")[2].partition("\n\n\n")[0].splitlines()
        assert len([line for line in lines if line.strip()]) <= 12, kind
