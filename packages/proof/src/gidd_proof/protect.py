"""Text that is never changed: code, addresses, paths, and words that are not ordinary words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gidd.pipeline import Span


NEVER_CHANGED: Final[tuple[str, ...]] = (
    r"^[ \t]*(?P<fence>`{3,}+|~{3,}+)[^\n]*+\n(?s:.*?)(?:^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)",
    r"(?<!`)(?P<tick>`{1,9}+)(?!`)[^\n]*?(?<!`)(?P=tick)(?!`)",
    r"(?<![a-zA-Z0-9+.-])[a-zA-Z][a-zA-Z0-9+.-]*://[^\s<>()\[\]\"']+|\bwww\.[^\s<>()\[\]\"']+",
    r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    r"(?<![\w/])(?:~|\.{1,2})?/[\w.~-]+(?:/[\w.~-]*)*|\b[A-Za-z]:\\[^\s\"'<>|]+",
    r"(?<![\w./\\-])\w+(?:[/\\][\w.-]+)+\.\w+\b",
    r"(?<![\w.-])[\w-]+(?:\.[\w-]+)*\.[a-z][a-z0-9]{0,9}\b(?![\w'’])",
    r"\A---\n(?s:.*?)^---$",
    r"<(?P<tag>code|pre|script|style)\b[^<>]*>(?s:.{0,2000}?)</(?P=tag)>|<[/!?]?[A-Za-z][^<>]*>|&#?\w+;",
    r"\]\([^()\s]*(?:\s+\"[^\"\n]*\")?\)|^ {0,3}\[[^\]\n]+\]:[^\n]*$",
    r"\\(?:begin|end|cite\w*|ref|eqref|label|input|include\w*|usepackage|url)\*?"
    r"(?:\[[^\]\n]{0,500}\])?\{[^{}\n]*\}|\\[A-Za-z]+\*?",
    r"(?<![\w\\$])\$(?=\S)[^$\n]*?(?<=\S)\$(?!\w)|\\\((?s:.{0,2000}?)\\\)|\\\[(?s:.{0,2000}?)\\\]",
    r"^[ \t]*\.\. [\w:-]+::[^\n]*$|^[ \t]*:[\w -]+:|(?<![\w:.+-]):[\w:.+-]+:`[^`\n]+`",
    r"(?<!\w)[@#][\w-]+",
    r"(?<!\w)\w*[\d_]\w*",
    r"\b(?=[^\W\d_]+[A-Z])[^\W\d_]++\b",
)
"""Fenced code, inline code, URLs, e-mail addresses, paths, names of files and hosts, front matter,
tags and entities of HTML, targets of links in Markdown, commands and formulas of LaTeX, directives,
fields and roles of reStructuredText, @names and #tags, words with digits or underscores, words in
capitals or with capitals inside."""

_PATTERNS = [re.compile(pattern, re.MULTILINE) for pattern in NEVER_CHANGED]


def protected_spans(text: str) -> list[Span]:
    """Return the spans of a text that are never changed, in order; they may overlap."""
    return sorted(match.span() for pattern in _PATTERNS for match in pattern.finditer(text))
