"""A page that shows how texts came about, step by step, in one file that needs nothing else.

Text is data here: it goes into a block of JSON in which no `<` is left, and the script writes it
with `textContent` alone. The page's policy allows that script and that style, by their hashes, and
no connection anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, Literal, NamedTuple

import torch

from gidd.common.files import write_text
from gidd.errors import ConfigError
from gidd.sampling import Frame

PiecesOf = Callable[[Sequence[int]], list[str]]
"""Tokens -> the text of each."""

_MASK = -1
"""Stands for a blank in the page's data."""


class Replay(NamedTuple):
    """One sequence from its first state to its last."""

    title: str
    frames: Sequence[Frame]
    protected: Sequence[bool]


def write_page(
    path: Path,
    stories: Sequence[Replay],
    pieces: PiecesOf,
    mask_id: int | None,
    *,
    kind: Literal["sample", "correct"],
    title: str,
    about: str,
    text: str,
    manifest: dict[str, Any],
) -> None:
    """Write the page.

    Args:
        path: The file.
        stories: What to show; at least one, each with at least one frame.
        pieces: Gives tokens their text.
        mask_id: The token of blanks.
        kind: A page about corrections opens at the end and marks what was replaced.
        title: The heading.
        about: One line below it.
        text: The text at the end, for readers without JavaScript.
        manifest: How to get the same again.
    """
    if not stories or not all(story.frames for story in stories):
        raise ConfigError(
            "a page needs the frames of every sequence, and there are none. Sample with watch=True."
        )
    strings: dict[str, int] = {}
    data = {
        "kind": kind,
        "stories": [_packed(story, pieces, mask_id, strings) for story in stories],
        "strings": list(strings),
        "manifest": manifest,
    }
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = Template(_asset("page.html")).substitute(
        policy=html.escape(policy),
        title=html.escape(title),
        about=html.escape(about),
        text=html.escape(text),
        style=style,
        data=_json(data),
        script=script,
    )
    write_text(path, page)


def _packed(
    story: Replay, pieces: PiecesOf, mask_id: int | None, strings: dict[str, int]
) -> dict[str, Any]:
    """A story as numbers: each shot holds what differs from the shot before.

    That is position, token and text: a byte's text changes with its neighbours, so the page needs
    the tokens to know what was replaced.
    """
    free = ~torch.tensor(story.protected, dtype=torch.bool)
    shots: list[dict[str, Any]] = []
    before: list[tuple[int, int] | None] = [None] * len(free)
    for frame in story.frames:
        tokens: list[int] = frame.tokens.tolist()
        cells = [
            (_MASK, _MASK) if token == mask_id else (token, strings.setdefault(text, len(strings)))
            for token, text in zip(tokens, pieces(tokens), strict=True)
        ]
        changed = [(i, *cell) for i, cell in enumerate(cells) if cell != before[i]]
        before = [*cells]
        shots.append(
            {
                "step_index": frame.step_index,
                "step": frame.step,
                "time": frame.time,
                "cells": [number for triple in changed for number in triple],
                "sure": _permille(frame.probability),
                "top": _other_choices(frame, free, pieces, strings),
                "accuracy": frame.self_accuracy(free.to(frame.tokens.device)),
                "entropy": frame.mean_entropy(free.to(frame.tokens.device)),
                "masks": sum(token == mask_id for token in tokens),
            }
        )
    return {"title": story.title, "given": [int(p) for p in story.protected], "shots": shots}


def _other_choices(
    frame: Frame, free: torch.Tensor, pieces: PiecesOf, strings: dict[str, int]
) -> list[int]:
    """Position, text and probability of the network's choice where it is not what stands there."""
    other = (frame.top != frame.tokens).cpu() & free
    sure = _permille(frame.top_probability)
    found: list[int] = []
    for i in other.nonzero().flatten().tolist():
        (text,) = pieces([int(frame.top[i])])
        found += [i, strings.setdefault(text, len(strings)), sure[i]]
    return found


def _permille(probability: torch.Tensor) -> list[int]:
    return (1000 * probability.cpu().double()).round().long().tolist()


def _json(value: object) -> str:
    """JSON that cannot end the element it stands in, nor begin a comment in it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (resources.files("gidd.viz") / "page" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"
