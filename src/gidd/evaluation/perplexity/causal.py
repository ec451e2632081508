"""Autoregressive models: the exact likelihood of the tokens that a diffusion model is scored on.

model = load_causal_model("models/baseline")  # a folder of transformers, a GGUF file, a hub name
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import torch

import gidd
from gidd.common.optional import optional_package
from gidd.data.tokenizers import TOKENIZER_FILE, Tokenizer
from gidd.diffusion.likelihood import TOKENS_PER_CALL, RankGroup, ScoredText
from gidd.errors import DataError
from gidd.evaluation.perplexity.windows import WindowScores
from gidd.evaluation.samples.grader import Grader
from gidd.evaluation.samples.grader_files import SMOLLM2, GraderPrecision, load_grader
from gidd.models.hub import MODEL_RECORD
from gidd.models.importers import IMPORTERS
from gidd.models.importers.checkpoint import CONFIG, read_checkpoint
from gidd.pipeline.text import TokenTexts

_UNKNOWN_CONTEXT = 1 << 40
"""Context of a model that does not state one."""

_MAX_LOGITS = 1 << 27
"""Logits of a forward pass, 0.5 GB in float32."""

_FIRST: Final = {
    "bos": "the tokenizer's BOS token is the context of the first token of a window that has none",
    "end": "end-of-text is the context of the first token of a window that has none",
    None: "the first token of a window without context is not scored: the tokenizer has neither a "
    "BOS nor an end-of-text token",
}


class _Row(NamedTuple):
    """The input of a window, and the targets at its last positions."""

    window: int
    inputs: list[int]
    targets: list[int]


@final
class CausalModel:
    """A causal language model of `transformers` that scores given tokens."""

    def __init__(self, grader: Grader, tokenizer: Tokenizer) -> None:
        """Take the model of a grader; `tokenizer` must have its tokens."""
        self.grader, self.tokenizer = grader, tokenizer
        self.token_texts = TokenTexts(tokenizer)
        self.end_id: int | None = getattr(grader.tokenizer, "eos_token_id", None)
        bos = _leading_bos(grader)
        self.first_id = self.end_id if bos is None else bos
        """Context of a first token; None if it is not scored."""
        kind = "end" if self.end_id is not None else None
        self.first_token_rule = _FIRST["bos" if bos is not None else kind]
        is_cpu = grader.model.device.type == "cpu"
        self.tokens_per_call = TOKENS_PER_CALL if is_cpu else 16 * TOKENS_PER_CALL

    @property
    def context(self) -> int:
        """Longest window; without bound if the model's configuration states none."""
        return self.grader.max_length

    @property
    def manifest(self) -> dict[str, Any]:
        """What identifies the model and how it is run, as plain data."""
        return {
            "gidd": gidd.__version__,
            "torch": str(torch.__version__),
            "transformers": optional_package("transformers", "eval").__version__,
            "model": {"name": self.grader.name, "sha256": self.grader.sha256},
            "tokenizer": self.tokenizer.fingerprint,
            "precision": str(self.grader.model.dtype).removeprefix("torch."),
        }

    def score(
        self,
        texts: Sequence[ScoredText],
        ranks: RankGroup | None = None,
        on_calls: Callable[[int, int], None] | None = None,
    ) -> WindowScores:
        """Return the negative log-likelihood of the tokens that are not given.

        All ranks call this with the same texts and get the same result.
        """
        rows = [row for i, text in enumerate(texts) if (row := self._row(i, text)).targets]
        nll, num_scored = [0.0] * len(texts), torch.zeros(len(texts), dtype=torch.int64)
        rank, size = (0, 1) if ranks is None else (ranks.rank, ranks.size)
        done = 0
        for number, batch in enumerate(self._batches(rows)):
            if number % size == rank:
                for row, value in zip(batch, self._nll(batch), strict=True):
                    nll[row.window] = value
            done += len(batch)
            if on_calls is not None:
                on_calls(done, len(rows))
        for row in rows:
            num_scored[row.window] = len(row.targets)
        found = torch.tensor(nll if ranks is None else ranks.sum(nll), dtype=torch.float64)
        if not math.isfinite(float(found.sum())):
            raise DataError(
                f"{self.grader.name} gives a likelihood that is not a number. Use float32."
            )
        device = str(self.grader.model.device)
        return WindowScores(found, num_scored, len(rows), device, self.tokens_per_call)

    def _row(self, window: int, text: ScoredText) -> _Row:
        """Return inputs that end before the last token, so that none is longer than the window."""
        tokens: list[int] = text.tokens.tolist()
        has_context = text.given is not None
        if not has_context and self.first_id is not None:
            return _Row(window, [self.first_id, *tokens[:-1]], tokens)
        num_given = len(tokens) - text.num_scored if has_context else 1
        return _Row(window, tokens[:-1], tokens[num_given:])

    def _batches(self, rows: Sequence[_Row]) -> Iterator[list[_Row]]:
        """Yield batches of bounded size, longest windows first."""
        order = sorted(rows, key=lambda row: -len(row.inputs))
        start = 0
        while start < len(order):
            length = len(order[start].inputs)
            most = min(self.tokens_per_call, _MAX_LOGITS // self.grader.vocab_size)
            size = max(1, most // length)
            yield order[start : start + size]
            start += size

    def _nll(self, batch: Sequence[_Row]) -> list[float]:
        """Return the summed negative log-likelihood of the targets of each row."""
        model, length = self.grader.model, len(batch[0].inputs)
        padding = [length - len(row.inputs) for row in batch]
        pairs = list(zip(batch, padding, strict=True))
        ids = torch.tensor([row.inputs + [0] * pad for row, pad in pairs])
        mask = torch.tensor([[1] * len(row.inputs) + [0] * pad for row, pad in pairs])
        with torch.inference_mode():
            logits = model(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                use_cache=False,
            ).logits
            sums: list[float] = []
            for scores, row in zip(logits, batch, strict=True):
                stop = len(row.inputs)
                losses = torch.nn.functional.cross_entropy(
                    scores[stop - len(row.targets) : stop].float(),
                    torch.tensor(row.targets, device=model.device),
                    reduction="none",
                )
                sums.append(float(losses.cpu().double().sum()))
        return sums


def is_causal_model(name: str) -> bool:
    """Whether a name is that of an autoregressive model and not of a diffusion model.

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
    grader = load_grader(name, device=device, precision=precision, max_length=_UNKNOWN_CONTEXT)
    with _without_notes():
        if (Path(name) / TOKENIZER_FILE).is_file():
            tokenizer = Tokenizer.load(name)
        else:
            tokenizer = Tokenizer(grader.tokenizer)
    return CausalModel(grader, tokenizer)


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


def _leading_bos(grader: Grader) -> int | None:
    """Return the BOS token if the tokenizer itself puts it before a text."""
    bos: int | None = getattr(grader.tokenizer, "bos_token_id", None)
    first: list[int] = grader.tokenizer("a")["input_ids"][:1]
    return bos if first == [bos] else None


@contextmanager
def _without_notes() -> Generator[None]:
    """Log no notes on the special tokens of diffusion, which a causal model never gets."""
    logger = logging.getLogger("gidd.data.tokenizers")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled
