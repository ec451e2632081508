"""Texts while they are sampled: what changes, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, final

from gidd.pipeline import Pipeline
from gidd.sampling import Edit, Event, OnStep, Request

MASK = "░"
"""Stands for a token that is masked."""


@final
@dataclass(frozen=True)
class Frame:
    """A sequence after a step."""

    request: Request
    tokens: tuple[int, ...]
    step: int
    steps: int
    edits: tuple[Edit, ...]

    def after(self, other: object) -> Frame:
        """Return what replaces this one and one before it that was not sent."""
        if isinstance(other, Frame) and other.request is self.request:
            return replace(self, edits=(*other.edits, *self.edits))
        return self


def emit_frames(emit: Callable[[Any], None]) -> OnStep:
    """Return what emits a frame for each sequence that has made a step."""

    def on_step(events: Sequence[Event]) -> None:
        for event in events:
            ticket = event.ticket
            frame = Frame(
                ticket.request, ticket.tokens, event.steps_done, ticket.num_steps, event.edits
            )
            if frame.tokens:
                emit(frame)

    return on_step


def describe_frame(pipe: Pipeline, frame: Frame, start: int = 0, stop: int | None = None) -> Any:
    """Return the text of some positions of a frame, and the edits there.

    Offsets of edits are characters of the text. The index is the one of the sample or, if a text is
    longer than the context, of the window that is corrected.
    """
    mask_id = pipe.schedule.vocab.mask_id
    tokens = frame.request.truncate_at_stop(frame.tokens)[start:stop]
    pairs = zip(pipe.token_texts(tokens), tokens, strict=True)
    texts = [MASK if token == mask_id else text for text, token in pairs]
    starts = list(accumulate(map(len, texts), initial=0))
    last = {edit.position: edit for edit in frame.edits}
    edits = [
        {
            "start": starts[position - start],
            "end": starts[position - start + 1],
            "text": texts[position - start],
            "probability": round(edit.probability, 4),
        }
        for position, edit in sorted(last.items())
        if 0 <= position - start < len(texts)
    ]
    return {
        "index": frame.request.sample_index,
        "text": "".join(texts),
        "step": frame.step,
        "steps": frame.steps,
        "edits": edits,
    }
