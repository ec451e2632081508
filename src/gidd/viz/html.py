"""An HTML page that replays sampling or correction step by step, in one self-contained file.

Text is data: it is embedded as JSON without any `<`, and the script only writes it with
`textContent`. The content security policy allows this script and this style by their hashes, and no
network connections.
"""

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

TextsOf = Callable[[Sequence[int]], list[str]]  # maps tokens to the text of each
_MASK = -1  # a blank in the page's data


class Replay(NamedTuple):
    """The frames of one sequence."""

    title: str
    frames: Sequence[Frame]
    protected: Sequence[bool]


def write_page(
    path: Path,
    replays: Sequence[Replay],
    decoder: TextsOf,
    mask_id: int | None,
    *,
    kind: Literal["sample", "correct"],
    title: str,
    about: str,
    text: str,
    manifest: dict[str, Any],
) -> None:
    """Write a page that shows at least one sequence, each with at least one frame.

    A page about a correction opens at the last step and marks replaced tokens. `about` is a line
    below the title, `text` the final text, for readers without JavaScript, and `manifest` the
    settings to reproduce it.
    """
    if not replays or not all(replay.frames for replay in replays):
        raise ConfigError("a page needs frames of every sequence: set record_frames=True.")
    strings: dict[str, int] = {}
    data = {
        "kind": kind,
        "replays": [_packed(replay, decoder, mask_id, strings) for replay in replays],
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
        title=_escape(title),
        about=_escape(about),
        text=_escape(text),
        style=style,
        data=_json(data),
        script=script,
    )
    write_text(path, page)


def _packed(
    replay: Replay, decoder: TextsOf, mask_id: int | None, strings: dict[str, int]
) -> dict[str, Any]:
    """Return a replay as numbers: each frame has the differences from the frame before.

    A difference is position, token and text: the text of a byte depends on its neighbours, so the
    page needs the tokens to find what was replaced.
    """
    free = ~torch.tensor(replay.protected, dtype=torch.bool)
    frames: list[dict[str, Any]] = []
    before: list[tuple[int, int] | None] = [None] * len(free)
    for frame in replay.frames:
        tokens: list[int] = frame.tokens.tolist()
        cells = [
            (_MASK, _MASK) if token == mask_id else (token, strings.setdefault(text, len(strings)))
            for token, text in zip(tokens, decoder(tokens), strict=True)
        ]
        changed = [(i, *cell) for i, cell in enumerate(cells) if cell != before[i]]
        before = [*cells]
        frames.append(
            {name: getattr(frame, name) for name in ("step_index", "step", "time")}
            | {
                "cells": [value for triple in changed for value in triple],
                "confidence": _permille(frame.probability),
                "top": _other_choices(frame, free, decoder, strings),
                "accuracy": frame.self_accuracy(free.to(frame.tokens.device)),
                "entropy": frame.mean_entropy(free.to(frame.tokens.device)),
                "masks": sum(token == mask_id for token in tokens),
            }
        )
    return {"title": replay.title, "given": [int(p) for p in replay.protected], "frames": frames}


def _other_choices(
    frame: Frame, free: torch.Tensor, decoder: TextsOf, strings: dict[str, int]
) -> list[int]:
    """Return position, text and probability of the most likely token where it is another one."""
    other = (frame.top != frame.tokens).cpu() & free
    confidence = _permille(frame.top_probability)
    cells: list[int] = []
    for i in other.nonzero().flatten().tolist():
        (text,) = decoder([int(frame.top[i])])
        cells += [i, strings.setdefault(text, len(strings)), confidence[i]]
    return cells


def _permille(probability: torch.Tensor) -> list[int]:
    return (1000 * probability.cpu().double()).round().long().tolist()


def _escape(text: str) -> str:
    """Return text as HTML; bytes of a file name that are not UTF-8 become question marks."""
    return html.escape(text.encode(errors="replace").decode())


def _json(value: object) -> str:
    """Return JSON that can neither close the element that contains it nor open a comment."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (resources.files("gidd.viz") / "page" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"
