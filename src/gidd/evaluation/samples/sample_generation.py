"""Samples of a model, with their self-accuracy and the manifest that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from gidd.evaluation.samples.sample_files import TextSample
from gidd.pipeline import Generation, Pipeline, SamplingOptions
from gidd.pipeline.confidence import predict_frames
from gidd.sampling import Event, OnStep, run_job

OnProgress = Callable[[str, int, int], None]
"""Called with what is being done, and how much of it is done and in total."""

NOT_SELF_SCORED: Final = (
    "self-accuracy is left out: the model was trained with masking alone, and its predictions at "
    "visible tokens are not trained"
)
_CHUNK = 16
"""Samples that are generated together: their traces are kept until all of them are done."""

_RUN_KEYS = ("task", "calls", "seconds", "sample_index")
"""Entries of a sample's manifest that are not shared by all samples of an evaluation."""


def generate_text_samples(
    pipe: Pipeline,
    num_samples: int,
    *,
    length: int | None = None,
    seed: int = 0,
    options: SamplingOptions,
    on_progress: OnProgress | None = None,
    **changes: Any,
) -> tuple[list[TextSample], dict[str, Any]]:
    """Return samples with their self-accuracy, and the manifest that they share."""
    samples: list[TextSample] = []
    manifest: dict[str, Any] = {}
    for start in range(0, num_samples, _CHUNK):
        on_step = on_progress and _steps_to_progress(on_progress, start, num_samples)
        generations = pipe.generate(
            min(_CHUNK, num_samples - start),
            length=length,
            seed=seed,
            start_index=start,
            on_step=on_step,
            options=options,
            **changes,
        )
        accuracies = self_accuracies(pipe, generations)
        for generation, accuracy in zip(generations, accuracies, strict=True):
            tokens, calls = generation.tokens, generation.calls
            samples.append(TextSample(generation.text, tokens, accuracy, calls))
        manifest = manifest or _shared_manifest(pipe, generations[0])
    return samples, manifest | {"num_samples": num_samples}


def self_accuracies(pipe: Pipeline, samples: Sequence[Generation]) -> list[float | None]:
    """Return the self-accuracy of each sample (Sec. 5.4) by one forward pass each.

    Tokens that were given, and those after end-of-text, are not counted. None for samples without
    tokens to count, and for models trained with masking alone.
    """
    if not pipe.can_score_visible_tokens:
        return [None] * len(samples)
    found: list[float | None] = []
    texts = [(sample.trace.tokens, ()) for sample in samples]
    frames = run_job(lambda jobs: predict_frames(jobs, pipe.engine, texts))
    for sample, frame in zip(samples, frames, strict=True):
        free = ~torch.tensor(sample.trace.protected, device=frame.tokens.device)
        free[len(sample.tokens) :] = False
        found.append(frame.self_accuracy(free) if bool(free.any()) else None)
    return found


def _shared_manifest(pipe: Pipeline, generation: Generation) -> dict[str, Any]:
    shared = {k: v for k, v in generation.manifest.items() if k not in _RUN_KEYS}
    if not pipe.can_score_visible_tokens:
        shared["notes"] = [*shared["notes"], NOT_SELF_SCORED]
    return shared


def _steps_to_progress(on_progress: OnProgress, start: int, num_samples: int) -> OnStep:
    """Return a callback of the sampler that counts the steps of all samples."""
    done: dict[int, int] = {}

    def count(events: Sequence[Event]) -> None:
        done.update({event.ticket.number: event.steps_done for event in events})
        most = max((event.ticket.num_steps for event in events), default=0)
        on_progress("sampling", start * most + sum(done.values()), num_samples * most)

    return count
