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
    r"\\begin\{(?P<environment>verbatim|Verbatim|lstlisting|minted|alltt|math|displaymath|equation"
    r"|eqnarray|align|gather|multline)\b[^}\n]*\}(?s:.*?)(?:\\end\{(?P=environment)|\Z)",
    r"\\(?:verb|lstinline)\*?(?P<mark>[^\w\s{*])[^\n]*?(?P=mark)|(?<!\\)\$\$(?s:.{0,2000}?)\$\$",
    r"^[ \t]*(?:import [\w.]+(?:,[ \t]*[\w.]+)*|from [\w.]+ import [^\n]*|#[ \t]*include[^\n]*"
    r"|(?:async )?(?:def|fn|func|function) \w+ *\([^\n]*|class \w+(?:\([^\n]*\))?:)[ \t]*$",
    r"^[^\n]*(?:[{}]|\)[ \t]*;)[ \t]*$|^[ \t]*[\w.\[\]]+[ \t]*[-+*/|]?=(?!=)[^\n]*$",
    r"(?<![\w.])\w[\w.]*+\((?:[^()\n]{0,200}[=\"'_\[][^()\n]{0,200})?\)",
    r"^[ \t]*+\|?(?:[ \t]*+[\w.:+-]*+[ \t]*+\|)++[ \t]*+[\w.:+-]*+[ \t]*+$",
    r"^[ \t]*\.\. [\w:-]+::[^\n]*$|^[ \t]*:[\w -]+:|(?<![\w:.+-]):[\w:.+-]+:`[^`\n]+`",
    r"(?<!\w)[@#][\w-]+",
    r"(?<!\w)\w*[\d_]\w*",
    r"\b(?=[^\W\d_]+[A-Z])[^\W\d_]++\b",
)
"""Fenced code, inline code, URLs, e-mail addresses, paths, names of files and hosts, front matter,
tags and entities of HTML, targets of links in Markdown, commands, verbatim text and formulas of
LaTeX, lines and calls of source code, rows of tables with a word in each cell, directives, fields
and roles of reStructuredText, @names and #tags, words with digits or underscores, words in
capitals or with capitals inside."""

_PATTERNS = [re.compile(pattern, re.MULTILINE) for pattern in NEVER_CHANGED]


def protected_spans(text: str) -> list[Span]:
    """Return the spans of a text that are never changed, in order; they may overlap."""
    return sorted(match.span() for pattern in _PATTERNS for match in pattern.finditer(text))
