"""The documentation site: its navigation, its links, and that it builds."""

import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest
import yaml

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NOTEBOOKS = sorted(DOCS.glob("tutorial/*.ipynb"))
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if path.parent.name != "tutorial"]
LINK = re.compile(r"!?\[[^\]\[]*(?:\[[^\]]*\][^\]\[]*)*\]\(([^)\s]+)\)")


def prose(path: Path) -> str:
    """The text of a page without its code."""
    text = re.sub(r"^(```+).*?^\1", "", path.read_text(), flags=re.S | re.M)
    return re.sub(r"`[^`\n]+`", "code", text)


def anchors(path: Path) -> set[str]:
    """The names of the headings of a page, as GitHub and Markdown's `toc` make them."""
    text = re.sub(r"^(```+).*?^\1", "", path.read_text(), flags=re.S | re.M)
    headings = re.findall(r"^#{1,6} +(.*?) *$", text, flags=re.M)
    shown = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", one).strip().lower()) for one in shown}


def pages_of(nav) -> list[str]:
    """The files of a navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    return [
        page
        for entry in (nav.values() if isinstance(nav, dict) else nav)
        for page in pages_of(entry)
    ]


def test_every_page_is_once_in_the_navigation():
    pages = pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    written = [*PAGES, *(path.with_suffix(".md") for path in NOTEBOOKS)]
    assert sorted(pages) == sorted(str(path.relative_to(DOCS)) for path in written)


@pytest.mark.parametrize(
    "path",
    [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("packages/*/README.md")],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_links_lead_to_files_and_headings(path):
    dead: list[str] = []
    for link in LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", link):
            continue  # another site
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if target.with_suffix(".ipynb") in NOTEBOOKS:
            continue  # its page is written when the site is built
        is_outside = path.is_relative_to(DOCS) and not target.is_relative_to(DOCS)
        if not target.exists() or is_outside or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert not dead, f"{path.name} has links to what is not there, or not on the site: {dead}"


@pytest.mark.parametrize("name", ["errata.md", "paper-to-code.md"])
def test_the_tests_that_are_cited_exist(name):
    cited = set(re.findall(r"\b(test_\w+)", (DOCS / name).read_text()))
    tests = "\n".join(path.stem + path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert not {one for one in cited if one not in tests}


def public(name: str) -> set[str]:
    """The classes and functions that a package exports."""
    try:
        package = importlib.import_module(name)
    except ModuleNotFoundError:
        return set()  # a function with a line of its own
    members = {one: getattr(package, one) for one in getattr(package, "__all__", ())}
    return {one for one, value in members.items() if isinstance(value, type | FunctionType)}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("zensical") is None, reason="needs gidd[dev]")
def test_the_site_builds_without_a_warning(tmp_path):
    for name in ("mkdocs.yml", "docs", "src"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    for words in (["docs/notebook_pages.py"], ["-m", "zensical", "build", "--strict"]):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    for page in PAGES:
        html = (tmp_path / "site" / page.relative_to(DOCS)).with_suffix(".html").read_text()
        # a placeholder of Markdown, read as letters of a formula
        assert "<mi>z</mi><mi>z</mi><mi>w</mi>" not in html, f"{page}: a formula with \\| or \\{{"
        for package in re.findall(r"^::: (gidd[\w.]*)$", page.read_text(), flags=re.M):
            missing = {name for name in public(package) if f'id="{package}.{name}"' not in html}
            assert not missing - {"ancestral"}, f"{page} lacks {missing}"  # on a line of its own


def test_lines_of_prose_have_at_most_120_characters():
    """Outside of tables and code."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        is_code = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            is_code ^= line.lstrip().startswith("```")
            is_prose = not is_code and not line.startswith(("|", "`", "<", "$$", "    "))
            assert not is_prose or len(line) <= 120, f"{page}:{number}"


def test_names_in_the_map_of_the_code_exist():
    """Such as `training/loop.py: update`; a path may omit its package."""
    text = " ".join((ROOT / "docs/architecture.md").read_text(encoding="utf-8").split())
    references = re.findall(r"`([\w/]+\.py): ([\w.]+)`", text)
    assert len(references) > 20
    for path, name in references:
        (source,) = (ROOT / "src/gidd").rglob(path)
        kind, _, last = name.rpartition(".")
        code = source.read_text(encoding="utf-8")
        assert re.search(rf"(def|class) {last}\b", code), (path, name)
        assert not kind or re.search(rf"class {kind}\b", code), (path, name)
