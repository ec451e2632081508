"""What a network thinks of finished text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.pipeline.options import CLEAN_TIME
from gidd.pipeline.windows import windows
from gidd.sampling import (
    Canvas,
    Edit,
    Engine,
    Frame,
    Prediction,
    Processor,
    Request,
    Sample,
    StepOutput,
    corrector_plan,
)


def can_score_visible_tokens(schedule: MixingSchedule) -> bool:
    """Whether a network of this noise has learnt to doubt tokens that it sees.

    Under masking alone every visible token is right, so the loss never asks about one.
    """
    noise = schedule.beta_pi(torch.tensor([0.5])).squeeze(0)
    return any(p > 0 for token, p in enumerate(noise.tolist()) if token != schedule.vocab.mask_id)


class TokenConfidence(NamedTuple):
    """What the network thinks of a whole text."""

    probability: list[float]
    """x_theta of each token."""

    is_top: list[bool]
    """Whether the network finds no token more likely."""

    def self_accuracy(self, fixed: Sequence[bool]) -> float:
        """Share of tokens that are most likely, of those that may change; 1 if none may."""
        free = [top for top, kept in zip(self.is_top, fixed, strict=True) if not kept]
        return sum(free) / len(free) if free else 1.0


def score_tokens(
    engine: Engine, context: int, tokens: Sequence[int], processors: tuple[Processor, ...] = ()
) -> TokenConfidence:
    """On every token of a text of any length, from the window whose own it is."""
    parts = windows(len(tokens), context)
    frames = predict_frames(engine, [tokens[part.start : part.stop] for part in parts], processors)
    own = [(frame, part.own) for frame, part in zip(frames, parts, strict=True)]
    probability = torch.cat([frame.probability[where] for frame, where in own])
    top = torch.cat([frame.top_probability[where] for frame, where in own])
    return TokenConfidence(probability.tolist(), (probability >= top).tolist())


def predict_frames(
    engine: Engine, texts: Sequence[Sequence[int]], processors: tuple[Processor, ...] = ()
) -> list[Frame]:
    """The network's opinion on each text, at the least noise it knows; one call for each."""
    plan = corrector_plan(_leave, 1, CLEAN_TIME)
    requests = [
        Request(
            tokens=tuple(text),
            plan=plan,
            protected=(False,) * len(text),
            processors=processors,
        )
        for text in texts
    ]
    return [sample.frames[0] for sample in engine.sample(requests, record_frames=True)]


def _leave(
    schedule: MixingSchedule, s: Tensor, t: Tensor, canvas: Canvas, prediction: Prediction
) -> StepOutput:
    """Change nothing: the engine writes down what the network thinks."""
    return StepOutput(canvas.tokens)


def frames_of_masking(sample: Sample, mask_id: int | None) -> tuple[Frame, ...]:
    """The frames of a network that cannot judge visible tokens, and the last state.

    Such a network keeps visible tokens as they are: each is its own most likely token, and its
    probability is what x_theta was when it was written, 1 for tokens that were given.
    """
    written = torch.ones(len(sample.tokens))
    edits = list(sample.edits)
    frames: list[Frame] = []
    for frame in sample.frames:
        _take(written, edits, frame.step_index)
        visible = (frame.tokens != mask_id).cpu()
        frames.append(
            frame._replace(
                probability=torch.where(visible, written, frame.probability.cpu()),
                entropy=torch.where(visible, 0, frame.entropy.cpu()),
                top=torch.where(visible, frame.tokens.cpu(), frame.top.cpu()),
                top_probability=torch.where(visible, written, frame.top_probability.cpu()),
            )
        )
    _take(written, edits, None)
    tokens = torch.tensor(sample.tokens)
    last = frames[-1].step_index + 1 if frames else 0
    sure = written.clone()
    return (
        *frames,
        Frame(last, "end", 0.0, tokens, sure, torch.zeros_like(sure), tokens, sure),
    )


def _take(written: Tensor, edits: list[Edit], step_index: int | None) -> None:
    """Write the probabilities of all edits before a move, and drop these edits."""
    while edits and (step_index is None or edits[0].step_index < step_index):
        edit = edits.pop(0)
        written[edit.position] = edit.probability
