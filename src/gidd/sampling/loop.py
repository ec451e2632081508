"""The loop of sampling, for a batch that makes all steps together."""

import torch

from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.plan import Plan
from gidd.sampling.predict import Predict
from gidd.sampling.state import State, time_dtype


def sample(predict: Predict, schedule: MixingSchedule, state: State, plan: Plan) -> State:
    """Return the state after all steps of a plan; a `Session` does the same for many requests.

    A sequence that has converged makes no further step of its phase. At the end of a phase that
    scores its states the best one is restored.
    """
    device, dtype = state.tokens.device, time_dtype(state.tokens.device)
    for phase in plan.phases:
        is_done = torch.zeros_like(state.is_converged)
        for step_index in phase:
            step, t, s = plan.steps[step_index]
            times = torch.tensor([[t], [s]], dtype=dtype).to(device).expand(2, len(state.tokens))
            free = state._replace(
                step_index=torch.full_like(state.seed, step_index),
                protected=state.protected | is_done[:, None],
            )
            new = step(schedule, times[1], times[0], free, predict)
            done = is_done[:, None]
            state = state._replace(
                tokens=torch.where(free.protected, state.tokens, new.tokens),
                best=torch.where(done, state.best, new.best),
                best_score=torch.where(is_done, state.best_score, new.best_score),
                best_age=torch.where(is_done, state.best_age, new.best_age),
            )
            is_done = is_done | new.is_converged
        is_scored = state.best_score >= 0
        state = state._replace(
            tokens=torch.where(is_scored[:, None], state.best, state.tokens),
            best_score=torch.full_like(state.best_score, -1),
            best_age=torch.zeros_like(state.best_age),
        )
    return state
