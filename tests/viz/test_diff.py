"""The changes of a correction, as readable lines and as a patch."""

import io
import re
import shutil
import subprocess
import time

import pytest
from hypothesis import given, strategies as st
from rich.console import Console

from gidd.viz import diff
from gidd.viz.diff import TextChange

LINES = "".join(f"line {i} of a letter\n" for i in range(40))
APPLY = {
    "patch": ["patch", "--binary", "--quiet", "-p1", "-i", "the.patch"],
    "git": ["git", "apply", "--whitespace=nowarn", "-p1", "the.patch"],
}
NOT_LINE_ENDS = ["\f", "\v", "\r", "\x1c", "\x85", "\u2028", "\u2029"]


def corrected(text: str, changes: list[TextChange]) -> str:
    for change in reversed(changes):
        start, old, new, _ = change
        assert text[start : start + len(old)] == old
        text = text[:start] + new + text[start + len(old) :]
    return text


def replaced(text: str, *pairs: tuple[str, str]) -> list[TextChange]:
    """Return changes of the first occurrence of each old text."""
    return sorted(TextChange(text.index(old), old, new) for old, new in pairs)


def check(folder, tool: str, text: str, changes: list[TextChange], name: str = "letter.txt") -> str:
    """Return the patch after `tool` has applied it and made the corrected text."""
    if shutil.which(APPLY[tool][0]) is None:
        pytest.skip(f"needs {tool}")
    patch = diff.unified(name, text, corrected(text, changes))
    (folder / name).write_bytes(text.encode())
    (folder / "the.patch").write_bytes(patch.encode())
    subprocess.run(APPLY[tool], check=True, cwd=folder)
    assert (folder / name).read_bytes() == corrected(text, changes).encode()
    return patch


@pytest.mark.parametrize("tool", APPLY)
@pytest.mark.parametrize("sign", NOT_LINE_ENDS, ids=ascii)
def test_a_line_of_a_patch_ends_at_a_line_feed_alone(tmp_path, tool, sign):
    text = LINES.replace("of a", f"of{sign}a")
    patch = check(tmp_path, tool, text, replaced(text, ("line 7", "LINE 7")))
    assert patch.count("\n") == 3 + 8


@pytest.mark.parametrize("tool", APPLY)
@pytest.mark.parametrize(
    "text",
    [LINES, LINES.removesuffix("\n"), LINES.replace("\n", "\r\n"), "line 7"],
    ids=["LF", "no final newline", "CRLF", "one line"],
)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("line 7", "a line"),
        ("line 7", "two\nlines"),
        ("line 7", ""),
        (" of a letter\nline 9", " and"),
        ("letter\n", "letter\r\n"),
        ("line 0 of a letter\n", ""),
        ("line 39 of a letter\n", ""),
        ("letter", "letter\n\n\n"),
    ],
)
def test_a_patch_may_join_and_split_lines(tmp_path, tool, text, old, new):
    changes = replaced(text, (old, new)) if old in text else []
    if changes and corrected(text, changes):  # git refuses to make an empty file
        check(tmp_path, tool, text, changes)


@pytest.mark.parametrize("tool", APPLY)
def test_files_with_spaces_in_their_names_can_be_patched(tmp_path, tool):
    check(tmp_path, tool, LINES, replaced(LINES, ("line 7", "LINE 7")), "my letter.txt")


def test_hunks_have_three_lines_of_context_and_are_merged_if_they_touch():
    changes = replaced(LINES, ("line 0", "0"), ("line 7", "7"), ("line 15", "15"))
    patch = diff.unified("letter.txt", LINES, corrected(LINES, changes))
    assert re.findall("^@@.*@@$", patch, re.M) == ["@@ -1,11 +1,11 @@", "@@ -13,7 +13,7 @@"]
    neighbours = replaced(LINES, ("line 4", "4"), ("line 5", "5"))
    patch = diff.unified("letter.txt", LINES, corrected(LINES, neighbours))
    assert "".join(line[0] for line in patch.splitlines()) == "-+@   --++   "
    assert diff.unified("letter.txt", LINES, LINES) == ""


@given(
    st.lists(st.tuples(st.text("ab\n\r", max_size=4), st.text("ab\n\r", max_size=4)), max_size=9)
)
def test_a_patch_contains_both_sides(parts):
    """Every line of a hunk is at its stated place in the original and the corrected text."""
    text, changes = "", []
    for same, new in parts:
        text += same
        if same != new and same:
            changes.append(TextChange(len(text) - len(same), same, new))
        text += "ab\n"
    after = corrected(text, changes)
    sides = {"-": text.split("\n"), "+": after.split("\n")}
    at = {"-": 0, "+": 0}
    for line in diff.unified("a", text, after).split("\n")[2:-1]:
        if found := re.fullmatch(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@", line):
            at = {"-": int(found[1]) - 1, "+": int(found[2]) - 1}
            continue
        for side in "-+" if line[0] == " " else line[0]:
            assert sides[side][at[side]] == line[1:]
            at[side] += 1


@pytest.mark.perf
def test_a_patch_of_many_lines_is_made_within_a_second():
    """Of CPU time; `difflib` is quadratic in the number of changes."""
    text = "".join(f"{i} word\n" for i in range(8000))
    changes = [TextChange(m.start(), "word", "WORD") for m in re.finditer("word", text)][::40]
    after = corrected(text, changes)
    start = time.process_time()
    diff.unified("letter.txt", text, after)
    assert time.process_time() - start < 1


def shown(text: str, changes: list[TextChange], **options) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, **options)
    console.print(diff.readable(text, changes, colours=console.color_system is not None))
    return file.getvalue()


def test_a_readable_change_shows_changed_lines_only():
    text = "first line\nsecond line\nthird " + 60 * "word " + "end\n"
    changes = [
        TextChange(11, "second", "2nd"),
        TextChange(22, "\nthird", " \x1b[2Jthird"),
        TextChange(len(text) - 4, "end", "END"),
    ]
    out = shown(text, changes, color_system="truecolor")
    assert "\x1b[2J" not in out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert "first" not in plain
    assert "2 │ second→2nd line↵third→ \ufffd[2Jthird" in plain
    assert "…" in plain
    assert "end→END" in plain
    assert "\x1b[9;31msecond" in out
    assert "\x1b[1;32m2nd" in out


def test_old_and_new_are_marked_without_colours():
    text = "We is a nation.\n"
    out = shown(text, replaced(text, (" is", " are")), color_system=None)
    assert out.rstrip() == "1 │ We[- is-]{+ are+} a nation."


def test_notes_and_doubtful_places_are_shown():
    text = "Teh peopel of thestates form it.\n"
    changes = [
        TextChange(0, "Teh", "The", "99%"),
        TextChange(4, "peo", "peo", "pea? 12%"),  # left as it is
        TextChange(7, "pel", "ple", "97%"),
        TextChange(17, "", " ", "80%"),
        TextChange(17, "s", "S", "60%"),
    ]
    assert shown(text, changes, color_system=None).rstrip() == (
        "1 │ [-Teh-]{+The+} 99% [?peo?] pea? 12%[-pel-]{+ple+} 97% of the[-s-]{+ S+} 80%,\n"
        "    60%tates form it."
    )
    out = re.sub(r"\x1b\[[0-9;]*m", "", shown(text, changes, color_system="truecolor"))
    assert out.startswith("1 │ Teh→The 99% peo pea? 12%pel→ple 97% of thes→ S 80%, 60%tates")


def test_line_ends_are_shown_only_where_they_changed():
    text = "We is\r\na nation\r\n"
    assert shown(text, replaced(text, ("is", "are")), color_system=None).rstrip() == (
        "1 │ We [-is-]{+are+}"
    )
    out = shown(text, replaced(text, ("is\r\n", "are\n")), color_system=None)
    assert "We [-is␍↵-]{+are↵+}a nation" in out
