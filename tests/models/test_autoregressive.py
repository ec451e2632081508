"""The autoregressive baseline: the parameter count of the DiT, and causal."""

import os
import sys
from dataclasses import replace

import pytest
import torch

from gidd.errors import CheckpointError, ConfigError
from gidd.models import SIZES, AutoregressiveModel, DiTConfig, llama_config


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers", reason="the baseline needs the extra `hf`")


@pytest.mark.parametrize("size", SIZES)
def test_llama_has_as_many_parameters_as_the_dit(transformers, size):
    config = SIZES[size](50258)
    llama = llama_config(config)
    block = 4 * llama.hidden_size**2 + 3 * llama.hidden_size * llama.intermediate_size
    blocks = llama.num_hidden_layers * (block + 2 * llama.hidden_size)
    assert blocks == pytest.approx(config.num_block_parameters, rel=0.05)


def test_small_llama_has_92_million(transformers):
    with torch.device("meta"):
        model = AutoregressiveModel(DiTConfig.small(50258))
    blocks = sum(p.numel() for p in model.trunk.layers.parameters())
    assert blocks == pytest.approx(92.1e6, rel=0.01)
    assert model.head.weight is not model.trunk.embed_tokens.weight


def test_next_token_logits_depend_on_the_past_only(transformers):
    torch.manual_seed(0)
    model = AutoregressiveModel(DiTConfig.nano(11, max_length=16)).eval()
    x = torch.randint(11, (2, 16))
    changed = x.clone()
    changed[:, 9] = (x[:, 9] + 1) % 11
    with torch.no_grad():
        before, after = model(x), model(changed)
        torch.testing.assert_close(model.head(model.hidden(x)), before)
    assert before.shape == (2, 16, 11)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert (before[:, 9:] - after[:, 9:]).abs().amax((0, 2)).gt(0).all()


def test_recomputed_activations_change_no_gradient(transformers):
    torch.manual_seed(0)
    size, x = DiTConfig.nano(11, max_length=16), torch.randint(11, (2, 16))
    kept = AutoregressiveModel(size)
    again = AutoregressiveModel(replace(size, checkpoint_activations=True))
    again.load_state_dict(kept.state_dict())
    calls = []
    again.blocks[0].self_attn.register_forward_hook(lambda *_: calls.append("forward"))
    for model in (kept, again):
        model(x).square().sum().backward()
    assert len(calls) == 2  # in the forward pass, and again in the backward pass
    for one, other in zip(kept.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    with torch.no_grad():
        torch.testing.assert_close(kept.eval()(x), again.eval()(x))
    assert len(calls) == 3


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_file_modes_follow_the_umask(transformers, tmp_path, umask):
    before = os.umask(umask)
    try:
        AutoregressiveModel(DiTConfig.nano(11, max_length=16)).save(tmp_path)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert "model.safetensors" in modes
    assert modes == dict.fromkeys(modes, 0o666 & ~umask)


def test_a_full_disk_is_reported(transformers, tmp_path, monkeypatch):
    model = AutoregressiveModel(DiTConfig.nano(11, max_length=16))

    def full_disk(*args, **options):
        raise OSError("No space left on device")

    monkeypatch.setattr(transformers.PreTrainedModel, "save_pretrained", full_disk)
    with pytest.raises(CheckpointError, match=r"model.safetensors .*No space left"):
        model.save(tmp_path)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r'pip install "gidd\[hf\]"'):
        AutoregressiveModel(DiTConfig.nano(11))
