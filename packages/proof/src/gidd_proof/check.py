"""Report the mistakes of files, as linters do.

- Exit status: 0 if there are none, 1 if there are some, 2 for wrong options or unreadable files.
- Words of .gidd-proof-words (here or in a folder above) and ~/.config/gidd-proof/words are right.
- Nothing is changed: gidd-proof fix FILE... --in-place changes files.

Examples:
  gidd-proof check README.md docs/*.md
  gidd-proof check README.md --format sarif > proof.sarif
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from gidd.cli import (
    describe_edits,
    matching_spans,
    parse,
    percent,
    print_text,
    read_sources,
    require_patterns,
)
from gidd.errors import ConfigError
from gidd_proof.user_words import read_user_words, word_files

RULE = "gidd-proof/spelling"


@dataclass(frozen=True, kw_only=True)
class CheckCommand:
    """Options of `gidd-proof check`."""

    files: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE...")] = ()
    """Text files in UTF-8, or - for standard input."""

    format: Literal["text", "brief", "json", "sarif"] = "text"
    """text: path:line:column and the right word; brief: path:line:column: wrong -> right; json: one
    object per mistake; sarif: for code hosts."""

    min_confidence: float = 0.4
    """Smallest probability of a correction that is reported."""

    words: Annotated[
        tuple[Path, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FILE")
    ] = ()
    """File with words that are right, one per line."""

    protect: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="REGEX")
    ] = ()
    """Regular expression; matching text is not checked."""

    model: Annotated[str | None, tyro.conf.DisallowNone] = None
    """Folder of a model of characters; by default the packaged English model."""


def check(arguments: Sequence[str]) -> None:
    """Parse, check and print; exit with 1 if there are mistakes."""
    command = parse(CheckCommand, arguments, prog="gidd-proof check", description=__doc__)
    if not 0 <= command.min_confidence <= 1:
        raise ConfigError(f"--min-confidence must be in [0, 1], got {command.min_confidence}.")
    require_patterns(command.protect)
    sources = read_sources(command.files, None, in_place=False, is_printed=True)
    words = read_user_words([*word_files(Path.cwd()), *command.words])
    import gidd_proof

    proofreader = gidd_proof.load(command.model).with_words(words)
    mistakes: list[dict[str, Any]] = []
    for source in sources:
        if source.text:
            correction = proofreader.correct(
                source.text,
                min_confidence=command.min_confidence,
                protected=matching_spans(command.protect, source.text),
                file_name=source.path and source.path.name,
            )
            rows = ({"path": source.name, **edit} for edit in describe_edits(correction))
            mistakes += [row for row in rows if row["change"]]
    is_sarif = command.format == "sarif"
    for line in [json.dumps(sarif(mistakes))] if is_sarif else lines(command, mistakes):
        print_text(line)
    raise SystemExit(1 if mistakes else 0)


def lines(command: CheckCommand, mistakes: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line per mistake."""
    for row in mistakes:
        place = f"{row['path']}:{row['line']}:{row['column']}"
        if command.format == "json":
            names = ("path", "line", "column", "old", "new", "alternatives")
            yield json.dumps({"type": "spelling", **{name: row[name] for name in names}})
        elif command.format == "brief":
            yield f"{place}: {row['old']} -> {row['new']}"
        else:
            (confidence,) = (
                a["probability"] for a in row["alternatives"] if a["text"] == row["new"]
            )
            yield f"{place}: `{row['old']}` should be `{row['new']}` ({percent(confidence)})"


def sarif(mistakes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mistakes as a SARIF 2.1.0 log."""
    results = [
        {
            "ruleId": RULE,
            "level": "warning",
            "message": {"text": f"`{row['old']}` should be `{row['new']}`."},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": Path(row["path"]).as_posix()},
                        "region": {
                            "startLine": row["line"],
                            "startColumn": row["column"],
                            "endColumn": row["column"] + len(row["old"]),
                        },
                    }
                }
            ],
        }
        for row in mistakes
    ]
    driver = {"name": "gidd-proof", "rules": [{"id": RULE}]}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
        ],
    }
