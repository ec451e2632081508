"""Likelihoods of windows, under diffusion and autoregressive models: here, on ranks, or on Ray.

model = ModelSource("models/baseline").load()  # of either kind
scores = score_windows(model, texts, PerplexityOptions())
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor

import gidd
from gidd.common.actors import ActorOptions, map_on_ray
from gidd.common.local_models import local_model
from gidd.common.optional import optional_package
from gidd.data.tokenizers import TOKENIZER_FILE, Tokenizer
from gidd.diffusion.likelihood import TOKENS_PER_BATCH, RankGroup, ScoredText
from gidd.errors import ConfigError, DataError
from gidd.evaluation.graders import (
    NOT_SCORED,
    SMOLLM2,
    CausalRow,
    CausalScorer,
    GraderPrecision,
    load_grader,
)
from gidd.evaluation.options import PerplexityOptions
from gidd.models.hub import MODEL_RECORD
from gidd.models.importers import find_importer
from gidd.models.importers.checkpoint import CONFIG, read_checkpoint
from gidd.pipeline import Pipeline, from_pretrained
from gidd.pipeline.precision import Precision
from gidd.pipeline.score import describe_estimate, estimate_likelihood
from gidd.pipeline.text import TokenDecoder

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_UNKNOWN_CONTEXT = 1 << 40
_WINDOWS_PER_ITEM = 64  # that a Ray actor scores at once
_FIRST: Final = {
    "bos": "the tokenizer's BOS token is the context of the first token of a window that has none",
    "end": "end-of-text is the context of the first token of a window that has none",
    None: "the first token of a window without context is not scored: the tokenizer has neither a "
    "BOS nor an end-of-text token",
}

OnForwardPasses = Callable[[int, int], None]  # called with the forward passes done and expected


class WindowScores(NamedTuple):
    """Likelihoods of windows in nats, in float64 on the CPU."""

    nelbo: Float[Tensor, " W"]
    num_scored: Int[Tensor, " W"]
    forward_passes: int
    manifest: dict[str, Any]  # the model, its device and precision where it ran, and the estimator
    repeats: int = 1
    standard_error: Float[Tensor, " W"] | None = None
    """Monte Carlo error; None if the likelihood is exact."""
    reconstruction: Float[Tensor, "R W"] | None = None
    """The part of `nelbo` below the smallest time, of each repeat."""
    prior: Float[Tensor, " W"] | None = None  # the part of `nelbo` above the largest time


class CausalModel:
    """An autoregressive model with a tokenizer of this library, which scores given tokens."""

    def __init__(self, scorer: CausalScorer, tokenizer: Tokenizer) -> None:
        self.scorer, self.tokenizer = scorer, tokenizer
        self.decoder = TokenDecoder(tokenizer)
        self.context = scorer.max_length
        self.end_id: int | None = getattr(scorer.tokenizer, "eos_token_id", None)
        self.first_id = scorer.bos[0] if scorer.bos else self.end_id
        """Context of a first token; None if a first token is not scored."""
        is_cpu = scorer.model.device.type == "cpu"
        self.tokens_per_batch = TOKENS_PER_BATCH if is_cpu else 16 * TOKENS_PER_BATCH

    def score(
        self,
        texts: Sequence[ScoredText],
        ranks: RankGroup | None = None,
        on_forward_passes: OnForwardPasses | None = None,
    ) -> WindowScores:
        """Return the negative log-likelihood of the tokens that are not given, on all ranks."""
        rows = [self._row(text) for text in texts]
        scored = [i for i, row in enumerate(rows) if row.targets]
        nll = self.scorer.nll(
            [rows[i] for i in scored],
            max_tokens=self.tokens_per_batch,
            ranks=ranks,
            on_rows=on_forward_passes,
        )
        nelbo = torch.zeros(len(texts), dtype=torch.float64)
        nelbo[scored] = torch.tensor(nll, dtype=torch.float64)
        num_scored = torch.tensor([sum(x != NOT_SCORED for x in row.targets) for row in rows])
        kind = "bos" if self.scorer.bos else ("end" if self.end_id is not None else None)
        manifest = {
            "gidd": gidd.__version__,
            "torch": str(torch.__version__),
            "transformers": optional_package("transformers", "eval").__version__,
            "model": {"name": self.scorer.name, "sha256": self.scorer.sha256},
            "tokenizer": self.tokenizer.fingerprint,
            "device": str(self.scorer.model.device),
            "precision": str(self.scorer.model.dtype).removeprefix("torch."),
            "tokens_per_batch": self.tokens_per_batch,
            "objective": "autoregressive: exact negative log-likelihood",
            "first_token": _FIRST[kind],
        }
        return WindowScores(nelbo, num_scored, len(scored), manifest)

    def _row(self, text: ScoredText) -> CausalRow:
        """Return inputs that end before the last token, so that none is longer than the window."""
        tokens: list[int] = text.tokens.tolist()
        targets = torch.where(text.scored, text.tokens, NOT_SCORED).tolist()
        inputs = tokens[:-1]
        if targets[0] != NOT_SCORED and self.first_id is not None:
            inputs = [self.first_id, *inputs]
        else:
            targets = targets[1:]
        start = next((i for i, x in enumerate(targets) if x != NOT_SCORED), len(targets))
        return CausalRow(inputs, start, targets[start:])


def is_causal_model(name: str) -> bool:
    """Whether a name means an autoregressive model and not a diffusion model.

    It is a GGUF file, smollm2, or has a `config.json` that is not of a diffusion model's project.
    """
    path = local_model(name) or Path(name)
    if name == SMOLLM2 or path.suffix.lower() == ".gguf":
        return True
    if not path.is_dir():
        is_name = re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", name)
        if not is_name or ("/" in name and path.parent.is_dir()):
            return False
        try:
            hub = optional_package("huggingface_hub", "eval")
            path = Path(hub.hf_hub_download(name, CONFIG)).parent
        except Exception:  # the loader of diffusion models says what is wrong with the name
            return False
    if (path / MODEL_RECORD).is_file() or not (path / CONFIG).is_file():
        return False
    checkpoint = read_checkpoint(path)
    return find_importer(checkpoint) is None


def load_causal_model(
    name: str, *, device: str | None = None, precision: GraderPrecision = "float32"
) -> CausalModel:
    """Load a causal language model: a folder, a GGUF file, a hub name, or smollm2."""
    scorer = load_grader(name, device=device, precision=precision, max_length=_UNKNOWN_CONTEXT)
    logger = logging.getLogger("gidd.data")  # has notes on special tokens of diffusion
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        has_own = (Path(name) / TOKENIZER_FILE).is_file()
        tokenizer = Tokenizer.load(name) if has_own else Tokenizer(scorer.tokenizer)
    finally:
        logger.setLevel(level)
    return CausalModel(scorer, tokenizer)


class ModelSource(NamedTuple):
    """How a model of either kind is loaded."""

    name: str
    device: str | None = None
    precision: Precision | None = None
    """As in `from_pretrained`; float32 for an autoregressive model."""
    tokenizer: str | None = None  # tokenizer of a diffusion model that has none

    def load(self) -> Pipeline | CausalModel:
        """Load the model: autoregressive if it is a causal language model of `transformers`."""
        if not is_causal_model(self.name):
            name, device, precision, tokenizer = self
            return from_pretrained(name, device=device, precision=precision, tokenizer=tokenizer)
        if self.tokenizer is not None or self.precision == "tf32":
            got = f"tokenizer {self.tokenizer}, precision {self.precision}"
            problem = "an autoregressive model has its own tokenizer and runs in float32 or bf16"
            raise ConfigError(f"{problem}, got {got}.")
        precision = self.precision or "float32"
        return load_causal_model(self.name, device=self.device, precision=precision)


def score_windows(
    model: Pipeline | CausalModel,
    texts: Sequence[ScoredText],
    options: PerplexityOptions,
    ranks: RankGroup | None = None,
    on_forward_passes: OnForwardPasses | None = None,
) -> WindowScores:
    """Return likelihoods of windows; all ranks call this and get the same result."""
    if isinstance(model, CausalModel):
        return model.score(texts, ranks, on_forward_passes)
    estimate, estimator = estimate_likelihood(model, texts, options, ranks, on_forward_passes)
    manifest = {
        **model.describe(),
        "tokens_per_batch": estimator.tokens_per_batch,
        "objective": "diffusion: upper bound on the negative log-likelihood (NELBO)",
        "first_token": "scored like all others",
        **describe_estimate(options, len(estimate.draws)),
    }
    return WindowScores(
        estimate.nelbo,
        torch.tensor([text.num_scored for text in texts]),
        estimate.forward_passes,
        manifest,
        len(estimate.draws),
        estimate.standard_error,
        estimate.draws[..., 1] if estimator.has_ends else None,
        estimate.prior if estimator.has_ends else None,
    )


def score_on_ray(
    source: ModelSource,
    texts: Sequence[ScoredText],
    options: PerplexityOptions,
    actors: ActorOptions,
    on_forward_passes: OnForwardPasses | None = None,
) -> WindowScores:
    """Return likelihoods of windows that the actors of a Ray cluster compute.

    They differ from the numbers of one process by rounding, because batches differ.
    """
    if options.max_se is not None:
        raise ConfigError("max_se must be omitted on Ray actors. Set repeats instead.")
    windows = [(text.tokens.tolist(), text.index, text.scored.tolist()) for text in texts]
    starts = range(0, len(windows), _WINDOWS_PER_ITEM)
    items = [windows[start : start + _WINDOWS_PER_ITEM] for start in starts]
    results: list[Mapping[str, Any]] = [{} for _ in items]
    done = 0
    for position, scores in map_on_ray(_WindowWorker, (source, options), items, actors):
        results[position] = scores
        done += len(scores["nelbo"])
        if on_forward_passes is not None:
            on_forward_passes(done, len(texts))

    joined = dict(results[0])
    if any(scores["manifest"] != joined["manifest"] for scores in results):
        fix = "Set --device and --precision, and install one version on all machines."
        raise DataError(f"all actors must run the same model on equal devices. {fix}")
    for name in ("nelbo", "num_scored", "standard_error", "reconstruction", "prior"):
        if joined[name] is not None:
            kind = torch.int64 if name == "num_scored" else torch.float64
            parts = [torch.tensor(scores[name], dtype=kind) for scores in results]
            joined[name] = torch.cat(parts, dim=-1)
    joined["forward_passes"] = sum(scores["forward_passes"] for scores in results)
    return WindowScores(**joined)


class _WindowWorker:
    def __init__(self, source: ModelSource, options: PerplexityOptions) -> None:
        self._model, self._options = source.load(), options

    def __call__(self, item: Sequence[tuple[list[int], int, list[bool]]]) -> dict[str, Any]:
        texts = [
            ScoredText(torch.tensor(tokens), index, None if all(scored) else ~torch.tensor(scored))
            for tokens, index, scored in item
        ]
        values = score_windows(self._model, texts, self._options)._asdict().items()
        return {k: v.tolist() if isinstance(v, Tensor) else v for k, v in values}
