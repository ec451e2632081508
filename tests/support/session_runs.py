"""Sequences of a canvas, run through a session."""

import torch

from gidd.sampling import Canvas, Plan, Request, Sample, Session


def run_canvas(session: Session, canvas: Canvas, plan: Plan | list[Plan]) -> list[Sample]:
    """Step all sequences of a canvas to the end of their plans, in place; return the samples."""
    plans = [plan] * len(canvas.tokens) if isinstance(plan, Plan) else plan
    rows = zip(
        canvas.tokens.tolist(),
        canvas.protected.tolist(),
        canvas.seed.tolist(),
        canvas.sample_index.tolist(),
        plans,
        strict=True,
    )
    requests = [
        Request(
            tokens=tuple(tokens),
            plan=own,
            seed=seed,
            sample_index=index,
            protected=tuple(protected),
        )
        for tokens, protected, seed, index, own in rows
    ]
    samples = session.sample(requests)
    canvas.tokens[:] = torch.tensor([sample.tokens for sample in samples])
    return samples
