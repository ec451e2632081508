"""Likelihoods of windows, under diffusion and autoregressive models: here, on ranks, or on Ray.

model = ModelSource("models/baseline").load()  # of either kind
scores = score_windows(model, texts, PerplexityOptions())
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import torch
from torch import Tensor

import gidd
from gidd.common.actors import ActorOptions, map_on_ray
from gidd.common.optional import optional_package
from gidd.data.tokenizers import TOKENIZER_FILE, Tokenizer
from gidd.diffusion.likelihood import TOKENS_PER_CALL, RankGroup, ScoredText
from gidd.errors import ConfigError, DataError
from gidd.evaluation.graders import SMOLLM2, CausalRow, CausalScorer, GraderPrecision, load_grader
from gidd.evaluation.model_manifest import describe_pipeline
from gidd.evaluation.options import PerplexityOptions
from gidd.models.hub import MODEL_RECORD
from gidd.models.importers import IMPORTERS
from gidd.models.importers.checkpoint import CONFIG, read_checkpoint
from gidd.pipeline import Pipeline, from_pretrained
from gidd.pipeline.precision import Precision
from gidd.pipeline.score import ScoringWindow, describe_estimate, estimate_likelihood
from gidd.pipeline.text import TokenDecoder

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_UNKNOWN_CONTEXT = 1 << 40
"""Context of a model that does not state one."""

_WINDOWS_PER_ITEM = 64
"""Windows that a Ray actor scores at once."""

_FIRST: Final = {
    "bos": "the tokenizer's BOS token is the context of the first token of a window that has none",
    "end": "end-of-text is the context of the first token of a window that has none",
    None: "the first token of a window without context is not scored: the tokenizer has neither a "
    "BOS nor an end-of-text token",
}

OnCalls = Callable[[int, int], None]
"""Called with the forward passes done and expected."""


class WindowScores(NamedTuple):
    """Likelihoods of windows in nats, in float64 on the CPU."""

    nelbo: Float[Tensor, " W"]
    num_scored: Int[Tensor, " W"]
    """Scored tokens of each window."""

    calls: int
    """Forward passes of single windows."""

    manifest: dict[str, Any]
    """The model, its device and precision where it ran, and the estimator."""

    repeats: int = 1
    standard_error: Float[Tensor, " W"] | None = None
    """Monte Carlo error; None if the likelihood is exact."""

    reconstruction: Float[Tensor, "R W"] | None = None
    """The part of `nelbo` below the smallest time, of each repeat."""

    prior: Float[Tensor, " W"] | None = None
    """The part of `nelbo` above the largest time."""


@final
class CausalModel:
    """An autoregressive model with a tokenizer of this library, which scores given tokens."""

    def __init__(self, scorer: CausalScorer, tokenizer: Tokenizer) -> None:
        """Take a scorer and a tokenizer with the same vocabulary."""
        self.scorer, self.tokenizer = scorer, tokenizer
        self.token_texts = TokenDecoder(tokenizer)
        self.context = scorer.max_length
        self.end_id: int | None = getattr(scorer.tokenizer, "eos_token_id", None)
        self.first_id = scorer.bos[0] if scorer.bos else self.end_id
        """Context of a first token; None if a first token is not scored."""
        is_cpu = scorer.model.device.type == "cpu"
        self.tokens_per_call = TOKENS_PER_CALL if is_cpu else 16 * TOKENS_PER_CALL

    def score(
        self,
        texts: Sequence[ScoredText],
        ranks: RankGroup | None = None,
        on_calls: OnCalls | None = None,
    ) -> WindowScores:
        """Return the negative log-likelihood of the tokens that are not given.

        All ranks call this with the same texts and get the same result.
        """
        rows = [self._row(text) for text in texts]
        scored = [i for i, row in enumerate(rows) if row.targets]
        nll = self.scorer.nll(
            [rows[i] for i in scored],
            max_tokens=self.tokens_per_call,
            ranks=ranks,
            on_rows=on_calls,
        )
        found = torch.zeros(len(texts), dtype=torch.float64)
        found[scored] = torch.tensor(nll, dtype=torch.float64)
        num_scored = torch.tensor([len(row.targets) for row in rows])
        return WindowScores(found, num_scored, len(scored), self._describe())

    def _row(self, text: ScoredText) -> CausalRow:
        """Return inputs that end before the last token, so that none is longer than the window."""
        tokens: list[int] = text.tokens.tolist()
        if text.given is None and self.first_id is not None:
            return CausalRow([self.first_id, *tokens[:-1]], 0, tokens)
        num_given = 1 if text.given is None else len(tokens) - text.num_scored
        return CausalRow(tokens[:-1], num_given - 1, tokens[num_given:])

    def _describe(self) -> dict[str, Any]:
        kind = "bos" if self.scorer.bos else ("end" if self.end_id is not None else None)
        return {
            "gidd": gidd.__version__,
            "torch": str(torch.__version__),
            "transformers": optional_package("transformers", "eval").__version__,
            "model": {"name": self.scorer.name, "sha256": self.scorer.sha256},
            "tokenizer": self.tokenizer.fingerprint,
            "device": str(self.scorer.model.device),
            "precision": str(self.scorer.model.dtype).removeprefix("torch."),
            "tokens_per_call": self.tokens_per_call,
            "objective": "autoregressive: exact negative log-likelihood",
            "first_token": _FIRST[kind],
        }


def is_causal_model(name: str) -> bool:
    """Whether a name means an autoregressive model and not a diffusion model.

    It is a GGUF file, smollm2, or has a `config.json` that is not of a diffusion model's project.
    """
    path = Path(name)
    if name == SMOLLM2 or path.suffix.lower() == ".gguf":
        return True
    folder = path if path.is_dir() else _downloaded_config(name)
    if folder is None or (folder / MODEL_RECORD).is_file() or not (folder / CONFIG).is_file():
        return False
    checkpoint = read_checkpoint(folder)
    return not any(importer.matches(checkpoint) for importer in IMPORTERS)


def load_causal_model(
    name: str, *, device: str | None = None, precision: GraderPrecision = "float32"
) -> CausalModel:
    """Load a causal language model: a folder, a GGUF file, a hub name, or smollm2."""
    scorer = load_grader(name, device=device, precision=precision, max_length=_UNKNOWN_CONTEXT)
    with _without_notes():
        if (Path(name) / TOKENIZER_FILE).is_file():
            tokenizer = Tokenizer.load(name)
        else:
            tokenizer = Tokenizer(scorer.tokenizer)
    return CausalModel(scorer, tokenizer)


def _downloaded_config(name: str) -> Path | None:
    """Return the folder of the `config.json` of a name on the hub; None if there is none."""
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", name) or (
        "/" in name and Path(name).parent.is_dir()
    ):
        return None
    try:
        hub = optional_package("huggingface_hub", "eval")
        return Path(hub.hf_hub_download(name, CONFIG)).parent
    except Exception:  # the loader of diffusion models says what is wrong with the name
        return None


@contextmanager
def _without_notes() -> Generator[None]:
    """Log no notes on the special tokens of diffusion, which a causal model never gets."""
    logger = logging.getLogger("gidd.data")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


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
    on_calls: OnCalls | None = None,
) -> WindowScores:
    """Return likelihoods of windows; all ranks call this and get the same result."""
    if isinstance(model, CausalModel):
        return model.score(texts, ranks, on_calls)
    found, estimator = estimate_likelihood(model, texts, options, ranks, on_calls)
    repeats = len(found.draws)
    manifest = {
        **describe_pipeline(model),
        "tokens_per_call": estimator.tokens_per_call,
        "objective": "diffusion: upper bound on the negative log-likelihood (NELBO)",
        "first_token": "scored like all others",
        **describe_estimate(options, repeats),
    }
    return WindowScores(
        found.nelbo,
        torch.tensor([text.num_scored for text in texts]),
        found.calls,
        manifest,
        repeats,
        found.standard_error,
        found.draws[..., 1] if estimator.has_ends else None,
        found.prior if estimator.has_ends else None,
    )


def score_on_ray(
    source: ModelSource,
    texts: Sequence[ScoredText],
    options: PerplexityOptions,
    actors: ActorOptions,
    on_calls: OnCalls | None = None,
) -> WindowScores:
    """Return likelihoods of windows that the actors of a Ray cluster compute.

    They differ from the numbers of one process by rounding, because batches differ. `max_se` is
    refused: it stops at an error over all windows.
    """
    if options.max_se is not None:
        raise ConfigError("max_se must be omitted on Ray actors. Set repeats instead.")
    windows = [
        (text.tokens.tolist(), len(text.tokens) - text.num_scored, text.index) for text in texts
    ]
    size = _WINDOWS_PER_ITEM
    items = [windows[start : start + size] for start in range(0, len(windows), size)]
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
    assert nelbo is not None and num_scored is not None
    manifest = found[0]["manifest"]
    if any(scores["manifest"] != manifest for scores in found):
        raise DataError(
            "all actors must run the same model on the same kind of device, but their manifests "
            "differ. Set --device and --precision, and install one version on all machines."
        )
    return WindowScores(
        nelbo,
        num_scored,
        sum(scores["calls"] for scores in found),
        manifest,
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

    def __call__(self, item: Sequence[tuple[list[int], int, int]]) -> dict[str, Any]:
        texts = [
            ScoringWindow(0, len(tokens), num_given).text(torch.tensor(tokens), index)
            for tokens, num_given, index in item
        ]
        scores = score_windows(self._model, texts, self._options)
        values = scores._asdict().items()
        return {k: v.tolist() if isinstance(v, Tensor) else v for k, v in values}
