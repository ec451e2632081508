"""Sequences of a state, run through a session."""

import torch

from gidd.sampling import Plan, Request, Sample, Session, State


def run_state(session: Session, state: State, plan: Plan | list[Plan]) -> list[Sample]:
    """Step all sequences of a state to the end of their plans, in place; return the samples."""
    plans = [plan] * len(state.tokens) if isinstance(plan, Plan) else plan
    rows = zip(
        state.tokens.tolist(),
        state.protected.tolist(),
        state.seed.tolist(),
        state.sample_index.tolist(),
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
    state.tokens[:] = torch.tensor([sample.tokens for sample in samples])
    return samples
