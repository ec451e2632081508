"""Confidence of the network in the tokens of a finished text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from gidd.diffusion.schedule import MixingSchedule
from gidd.pipeline.options import CLEAN_TIME
from gidd.sampling import Engine, Frame, Jobs, Processor, Request, Sample, corrector_plan, no_op
from gidd.sampling.windows import windows


def can_score_visible_tokens(schedule: MixingSchedule) -> bool:
    """Whether a network trained with this noise predicts other tokens than those it sees.

    Under masking alone every visible token is correct, so the loss does not depend on predictions
    at visible positions and the network does not learn any.
    """
    noise = schedule.beta_pi(torch.tensor([0.5])).squeeze(0)
    return any(p > 0 for token, p in enumerate(noise.tolist()) if token != schedule.vocab.mask_id)


async def score_tokens(
    jobs: Jobs,
    engine: Engine,
    context: int,
    tokens: Sequence[int],
    processors: tuple[Processor, ...] = (),
) -> Frame:
    """Return the prediction on a text of any length at the lowest noise level, by windows."""
    parts = windows(len(tokens), context)
    texts = [(tokens[part.start : part.stop], processors) for part in parts]
    frames = await predict_frames(jobs, engine, texts)
    # a frame is an index, a step, a time and then tensors over positions
    own = [[x[part.own] for x in frame[3:]] for frame, part in zip(frames, parts, strict=True)]
    return Frame(0, "end", CLEAN_TIME, *map(torch.cat, zip(*own, strict=True)))


async def predict_frames(
    jobs: Jobs,
    engine: Engine,
    texts: Iterable[tuple[Sequence[int], tuple[Processor, ...]]],
) -> list[Frame]:
    """Return the prediction on each text at the lowest noise level, by one forward pass each.

    Each text has its own processors of x_theta.
    """
    plan = corrector_plan(no_op, 1, CLEAN_TIME)  # only the frame before the step is used
    requests = [
        Request(
            tokens=tuple(text), plan=plan, protected=(False,) * len(text), processors=processors
        )
        for text, processors in texts
    ]
    samples = await jobs.sample(engine, requests, record_frames=True)
    return [sample.frames[0] for sample in samples]


def frames_of_masking(sample: Sample, mask_id: int | None) -> tuple[Frame, ...]:
    """Return the frames of a network that cannot score visible tokens, and one of the last state.

    Visible tokens do not change under masking: each is its own most likely token, and its
    probability is x_theta when it was written, 1 for given tokens.
    """
    edits, written = list(sample.edits), torch.ones(len(sample.tokens))
    tokens, none = torch.tensor(sample.tokens), torch.zeros_like(written)
    last = sample.frames[-1].step_index + 1 if sample.frames else 0
    end = Frame(last, "end", 0.0, tokens, written, none, tokens, written)
    frames: list[Frame] = []
    for frame in (*sample.frames, end):
        while edits and (frame is end or edits[0].step_index < frame.step_index):
            edit = edits.pop(0)
            written[edit.position] = edit.probability
        visible = (frame.tokens != mask_id).cpu()
        frames.append(
            frame._replace(
                probability=torch.where(visible, written, frame.probability.cpu()),
                entropy=torch.where(visible, 0, frame.entropy.cpu()),
                top=torch.where(visible, frame.tokens.cpu(), frame.top.cpu()),
                top_probability=torch.where(visible, written, frame.top_probability.cpu()),
            )
        )
    return tuple(frames)
