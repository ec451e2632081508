"""What the caller gives to `gidd.train`, `diffusion_loss` and `prepare` is as it was."""

import copy
import json
from pathlib import Path

import pytest
import torch
from support.options import is_equal
from support.small_model import TEXT, random_denoiser
from torch import nn

import gidd
from gidd.data import prepare
from gidd.data.tokenizers import character_level
from gidd.diffusion import HybridSchedule, TightWeighting
from gidd.errors import ConfigError
from gidd.vocab import Vocab

LETTERS = character_level("abcdefgh ")
FEW = {"steps": 2, "warmup": 0, "generate_samples": 0, "quiet": True}


def state_of(module: nn.Module) -> list[object]:
    """Modes, parameter objects, their types, devices, gradients and values, buffers and hooks."""
    return [
        *(
            (name, part.training, dict(part._forward_hooks))
            for name, part in module.named_modules()
        ),
        *((name, id(p), p.requires_grad, p.grad) for name, p in module.named_parameters()),
        copy.deepcopy(module.state_dict()),
    ]


@pytest.mark.parametrize("lora", [None, {"rank": 2, "alpha": 4}])
def test_training_changes_neither_network_nor_batches_nor_settings(lora, tmp_path):
    vocab = LETTERS.vocab
    network = random_denoiser(vocab, context=8).backbone.eval()
    network.embedding.requires_grad_(False)
    tokens = torch.randint(0, 9, (4, 8), generator=torch.Generator().manual_seed(0))
    given = {
        "data": [(tokens, tokens == 1), (tokens.flip(0), tokens == 2), (tokens, tokens == 3)],
        "optim": {"learning_rate": 0.1},
        "objective": {"eps": 1e-3},
        "trackers": [],
        **({"lora": lora} if lora else {}),
    }
    parts = {"schedule": HybridSchedule(vocab, 0.2), "tokenizer": LETTERS}
    parts["weighting"] = TightWeighting(parts["schedule"])
    before, told, described = state_of(network), copy.deepcopy(given), repr(parts)
    pipe = gidd.train(tmp_path, model=network, device="cpu", **given, **parts, **FEW)
    assert is_equal(state_of(network), before)
    assert is_equal(given, told)
    assert repr(parts) == described
    weights, start = pipe.denoiser.backbone.state_dict(), before[-1]
    changed = {name for name, value in start.items() if not torch.equal(weights[name], value)}
    assert changed and (not lora or all("blocks." in name for name in changed))


def test_a_network_that_cannot_be_copied_is_refused_before_it_is_trained(tmp_path):
    network = random_denoiser(LETTERS.vocab).backbone
    network.source = (line for line in ())
    with pytest.raises(ConfigError, match="^the network must be .*copy.deepcopy.*generator"):
        gidd.train(tmp_path, model=network, data="sentences", **FEW)


def test_the_loss_changes_no_tensor_of_the_caller():
    denoiser = random_denoiser(Vocab(10, mask_id=9)).train()
    schedule = HybridSchedule(denoiser.vocab, 0.2)
    rows = torch.arange(32).reshape(4, 8)
    tensors = {"tokens": rows % 9, "given": rows % 8 < 2, "valid": rows % 8 < 7}
    before, told = state_of(denoiser), copy.deepcopy(tensors)
    loss = gidd.diffusion_loss(denoiser, schedule, **tensors, step=0)
    torch.manual_seed(0)
    assert is_equal(state_of(denoiser), before) and is_equal(tensors, told)
    loss.loss.backward()
    assert is_equal(tensors, told) and is_equal(state_of(denoiser)[-1], before[-1])


@pytest.mark.parametrize("format", ["text", "chat"])
def test_preparing_changes_neither_sources_nor_tokenizer(format, tmp_path):
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    files = {"text": tmp_path / "a.txt", "chat": tmp_path / "a.jsonl"}
    files["text"].write_text(TEXT)
    files["chat"].write_text(json.dumps(chat) + "\n")
    tokenizer = character_level(TEXT + "UserAssistant:")
    sources: list[str | Path] = [files[format], str(files[format])]
    told, fingerprint = list(sources), tokenizer.fingerprint
    content = files[format].read_bytes()
    prepare(sources, tokenizer, tmp_path / "out", format=format, quiet=True)
    assert (sources, tokenizer.fingerprint) == (told, fingerprint)
    assert files[format].read_bytes() == content
