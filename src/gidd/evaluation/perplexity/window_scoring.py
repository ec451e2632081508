"""Score windows with a diffusion or an autoregressive model: here, on ranks, or on Ray actors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from gidd.common.actors import ActorOptions, map_on_ray
from gidd.diffusion.likelihood import RankGroup, ScoredText, estimate_nelbo
from gidd.diffusion.times import GRIDS
from gidd.errors import ConfigError
from gidd.evaluation.perplexity.causal import CausalModel, is_causal_model, load_causal_model
from gidd.evaluation.perplexity.perplexity_settings import PerplexityOptions
from gidd.evaluation.perplexity.windows import WindowScores
from gidd.pipeline import Pipeline, from_pretrained
from gidd.pipeline.precision import Precision
from gidd.sampling.network import require_finite_predictions

_WINDOWS_PER_ITEM = 64
"""Windows that an actor scores at once."""


class ModelSource(NamedTuple):
    """How a model of either kind is loaded."""

    name: str
    device: str | None = None
    precision: Precision | None = None
    """As in `from_pretrained`; float32 for an autoregressive model."""

    tokenizer: str | None = None
    """Tokenizer of a diffusion model that has none."""

    def load(self) -> Pipeline | CausalModel:
        """Load the model: autoregressive if it is a causal language model of `transformers`."""
        if not is_causal_model(self.name):
            return from_pretrained(
                self.name,
                device=self.device,
                precision=self.precision,
                tokenizer=self.tokenizer,
            )
        if self.tokenizer is not None:
            raise ConfigError(
                "tokenizer must be omitted for an autoregressive model, whose own is used, got "
                f"{self.tokenizer}."
            )
        if self.precision == "tf32":
            raise ConfigError(
                "precision must be float32 or bf16 for an autoregressive model, got tf32."
            )
        precision = self.precision or "float32"
        return load_causal_model(self.name, device=self.device, precision=precision)


def score_windows(
    model: Pipeline | CausalModel,
    texts: Sequence[ScoredText],
    options: PerplexityOptions,
    ranks: RankGroup | None = None,
    on_calls: Callable[[int, int], None] | None = None,
) -> WindowScores:
    """Return likelihoods of windows; all ranks call this and get the same result."""
    if isinstance(model, CausalModel):
        return model.score(texts, ranks, on_calls)
    estimator = model.nelbo_estimator(
        grid=options.grid, nodes=options.nodes, seed=options.seed, ranks=ranks
    )
    found = estimate_nelbo(
        estimator,
        texts,
        repeats=options.repeats,
        max_se=options.max_se,
        max_calls=options.max_calls,
        on_calls=on_calls,
    )
    require_finite_predictions(bool(found.nelbo.isfinite().all()))
    has_ends = GRIDS[options.grid].has_ends
    return WindowScores(
        found.nelbo,
        torch.tensor([text.num_scored for text in texts]),
        found.calls,
        str(model.device),
        estimator.tokens_per_call,
        len(found.draws),
        found.standard_error,
        found.draws[..., 1] if has_ends else None,
        found.prior if has_ends else None,
    )


def score_on_ray(
    source: ModelSource,
    texts: Sequence[ScoredText],
    options: PerplexityOptions,
    actors: ActorOptions,
    on_calls: Callable[[int, int], None] | None = None,
) -> WindowScores:
    """Return likelihoods of windows that the actors of a Ray cluster compute.

    They differ from those of one process by rounding, because batches are others. `max_se` is
    refused: it stops at an error over all windows.
    """
    if options.max_se is not None:
        raise ConfigError("max_se must be omitted on Ray actors. Set repeats instead.")
    starts = range(0, len(texts), _WINDOWS_PER_ITEM)
    items = [_to_item(texts[start : start + _WINDOWS_PER_ITEM]) for start in starts]
    found: list[Mapping[str, Any]] = [{} for _ in items]
    done = 0
    for position, scores in map_on_ray(_WindowWorker, (source, options), items, actors):
        found[position] = scores
        done += len(scores["nelbo"])
        if on_calls is not None:
            on_calls(done, len(texts))

    def joined(name: str, kind: torch.dtype = torch.float64) -> Tensor | None:
        if found[0][name] is None:
            return None
        return torch.cat([torch.tensor(scores[name], dtype=kind) for scores in found], dim=-1)

    nelbo, num_scored = joined("nelbo"), joined("num_scored", torch.int64)
    assert nelbo is not None
    assert num_scored is not None
    return WindowScores(
        nelbo,
        num_scored,
        sum(scores["calls"] for scores in found),
        found[0]["device"],
        found[0]["tokens_per_call"],
        found[0]["repeats"],
        joined("standard_error"),
        joined("reconstruction"),
        joined("prior"),
    )


@final
class _WindowWorker:
    """Scores items of windows in an actor."""

    def __init__(self, source: ModelSource, options: PerplexityOptions) -> None:
        self._model, self._options = source.load(), options

    def __call__(self, item: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        scores = score_windows(self._model, [_to_text(each) for each in item], self._options)
        values = scores._asdict().items()
        return {k: v.tolist() if isinstance(v, Tensor) else v for k, v in values}


def _to_item(texts: Sequence[ScoredText]) -> list[dict[str, Any]]:
    return [
        {
            "tokens": text.tokens.tolist(),
            "index": text.index,
            "num_given": len(text.tokens) - text.num_scored,
        }
        for text in texts
    ]


def _to_text(item: Mapping[str, Any]) -> ScoredText:
    tokens, num_given = torch.tensor(item["tokens"]), item["num_given"]
    given = torch.arange(len(tokens)) < num_given if num_given else None
    return ScoredText(tokens, item["index"], given)
