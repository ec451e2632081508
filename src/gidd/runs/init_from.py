"""Fine-tuning: the weights of a model as the initial weights of a run.

The network is that of the source. Its noise may be another one, and its vocabulary may lack tokens
at the end, such as a mask: their rows start as the mean of the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from gidd.common.config.codec import to_plain
from gidd.common.config.components import Component
from gidd.common.config.registry import name_of
from gidd.data.tokenizers import TOKENIZER_FILE, Tokenizer
from gidd.errors import CheckpointError, ConfigError, DataError
from gidd.models.backbones.hf_config import FAMILIES
from gidd.models.hub import NetworkSource, load_network
from gidd.models.importers.hf import start_token
from gidd.models.networks import copy_full, name_without_lora
from gidd.training.config import RunConfig
from gidd.training.recorded import OF_THE_RUN, newest_run
from gidd.training.state import TrainState


@dataclass(frozen=True)
class InitialWeights:
    """A model whose weights a run starts from."""

    name: str
    source: NetworkSource

    def initialize(self, state: TrainState, tokenizer: Tokenizer) -> list[str]:
        """Copy the weights into a state at step 0, which may be sharded; return notes."""
        self._require_tokenizer(tokenizer)
        tensors = {name: value.detach() for name, value in self.source.network.named_parameters()}
        network, known, missing = state.model.network, self.source.num_tokens, list[str]()
        tables = _token_tables(network)
        new_modules: Iterable[nn.Module] = getattr(network, "added_modules", ())
        added = {id(weight) for module in new_modules for weight in module.parameters()}
        for name, parameter in network.named_parameters():
            key = name_without_lora(name)
            if key is None:
                continue  # an adapter: it has its own initial value
            if key in tensors:
                tensor = tensors[key]
                if id(parameter) in tables:
                    tensor = _with_rows(tensor, parameter.shape[0], known)
                if tensor.shape != parameter.shape:
                    shapes = f"{list(parameter.shape)}, got {list(tensor.shape)} in the source"
                    raise ConfigError(f"{name} must have shape {shapes}. Is data.length too long?")
                copy_full(parameter, tensor)
            elif id(parameter) not in added:
                missing.append(name)
        if missing:
            problem = f"{self.name} lacks the parameters {', '.join(missing[:5])} of this network"
            raise CheckpointError(f"{problem}. Leave out --backbone.")
        if state.ema:
            for name, parameter in state.model.named_parameters():
                state.ema.values[name].copy_(parameter.detach())
        state.source = {"name": self.name, "sha256": self.source.sha256}
        notes = [f"initial weights of {self.name} (SHA-256 {self.source.sha256[:12]})"]
        if tokenizer.vocab.size > known:
            added = tokenizer.vocab.size - known
            notes.append(f"{added} tokens at the end, such as the mask, are new to the model")
        return notes + list(self.source.notes)

    def _require_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Refuse data of another tokenizer than that of the source, if it has one."""
        folder, known = self.source.folder, self.source.num_tokens
        if (folder / TOKENIZER_FILE).is_file():
            saved = Tokenizer.load(folder)
            is_same = (saved.fingerprint, saved.vocab) == (tokenizer.fingerprint, tokenizer.vocab)
        else:
            masks = (None, tokenizer.vocab.mask_id)
            is_same = tokenizer.vocab.size >= known and self.source.mask_id in masks
        if not is_same:
            sizes = f"{tokenizer.vocab.size:,} tokens, not that of {self.name} with {known:,}"
            fix = f"Prepare the data with `--tokenizer {folder}`."
            raise DataError(f"the data has a tokenizer of {sizes}. {fix}")


def with_source(run: RunConfig, out: Path) -> tuple[RunConfig, InitialWeights | None]:
    """Return the run with the network and tokenizer of its source, and the source.

    A run that has a checkpoint needs no source: its network is in the record.
    """
    if run.init_from is None:
        return run, None
    saved = newest_run(out / "checkpoints")
    if saved is not None and saved.init_from == run.init_from:
        data = run.data if run.data.prepared else replace(run.data, tokenizer=saved.data.tokenizer)
        backbone = _with_own(run.backbone, saved.backbone)
        return replace(run, backbone=backbone, data=data, context=saved.context), None
    source = load_network(run.init_from)
    config: Any = source.network.config
    registered = name_of(type(config))
    if registered is None:
        kind, families = type(source.network).__name__, ", ".join(FAMILIES)
        raise ConfigError(
            f"init_from must be a model that can be trained here, got {run.init_from}, a {kind}, "
            "whose logits are not linear in its hidden states. Take another model of "
            f"docs/importers.md, or one of {families} of transformers."
        )
    options = {
        name: getattr(config, name)
        for name in to_plain(config)
        if name not in ("kind", "package", "vocab_size", "max_length")
    }
    if "predicts_first" in options:
        options["predicts_first"] = True  # training includes the first token
    if "start_id" in options and not source.is_denoiser:
        # the output at a position goes on predicting the next token
        options["start_id"] = start_token(source.folder, config.vocab_size)
    replaced = Component("backbone", registered[1], options)
    backbone, data = _with_own(run.backbone, replaced), run.data
    if not data.prepared and (source.folder / TOKENIZER_FILE).is_file():
        data = replace(data, tokenizer=str(source.folder))
    # a causal or masked language model becomes a denoiser of data.length only
    context = config.max_length if source.is_denoiser else None
    initial = InitialWeights(run.init_from, source)
    return replace(run, backbone=backbone, data=data, context=context), initial


def _with_own(run: Component, source: Component) -> Component:
    """Return the source's network with those options of the run's that have no weights."""
    options = {k: v for k, v in run.options.items() if k in OF_THE_RUN and k in source.options}
    return source.changed(**options)


def _token_tables(network: nn.Module) -> set[int]:
    """Return the ids of the parameters with a row for each token: embedding and head."""
    config: Any = network.config
    tables = [m for m in network.modules() if isinstance(m, nn.Embedding)]
    tables = [table for table in tables if table.num_embeddings == config.vocab_size]
    modules = [cast(nn.Module, network.head), *tables]
    return {id(weight) for module in modules for weight in module.parameters(recurse=False)}


def _with_rows(table: Tensor, num_rows: int, num_tokens: int) -> Tensor:
    """Return a table with `num_rows` rows; those of new tokens are the mean of the others.

    Rows of the source after its `num_tokens` are padding.
    """
    kept = table[: min(num_tokens, num_rows)]
    if len(kept) == num_rows:
        return kept
    mean = kept.float().mean(0, keepdim=True).to(kept.dtype)
    return torch.cat([kept, mean.expand(num_rows - len(kept), *kept.shape[1:])])
