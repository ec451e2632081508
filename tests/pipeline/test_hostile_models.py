"""Models from elsewhere in a pipeline: no NaN in a result, no huge default, one message."""

import json
from pathlib import Path

import pytest
import torch
from support.small_model import CONTEXT, random_denoiser, write_model

import gidd
from gidd import models
from gidd.common.config.registry import builtin_components
from gidd.diffusion.schedules import MaskedSchedule
from gidd.errors import CheckpointError, DataError
from gidd.pipeline import Pipeline, SelfCorrectionOptions
from gidd.vocab import Vocab

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def overflowing(folder: Path) -> Pipeline:
    """Finite weights that are loaded, and whose predictions are not finite."""
    loaded = models.load(folder)
    with torch.no_grad():
        for parameter in loaded.denoiser.parameters():
            parameter.fill_(3e38)
    models.save(folder, loaded.denoiser, loaded.schedule, loaded.summary)
    return gidd.from_pretrained(folder, device="cpu")


@pytest.fixture(scope="module")
def huge(tmp_path_factory) -> Pipeline:
    return overflowing(write_model(tmp_path_factory.mktemp("huge")))


@pytest.fixture(scope="module")
def huge_masked(tmp_path_factory) -> Pipeline:
    return overflowing(write_model(tmp_path_factory.mktemp("huge"), p_uniform=0))


TASKS = {
    **{
        step: lambda p, name=step: p.generate(length=8, steps=3, sampler=name)
        for step in builtin_components("step")
    },
    "temperature 0": lambda p: p.generate(length=8, steps=3, temperature=0.0),
    "infill": lambda p: p.infill("Peace[MASK:3] all", steps=3),
    "score": lambda p: p.score("Peace", nodes=2, repeats=2),
}
VISIBLE_TASKS = {
    "gibbs": lambda p: p.generate(length=8, steps=3, final_corrector_steps=2),
    "correction": lambda p: p.generate(
        length=8, steps=3, self_correction=SelfCorrectionOptions(forward_passes=3)
    ),
    "correct": lambda p: p.correct("Peace and all"),
    "self_correct": lambda p: p.self_correct("Peace and all"),
}


@pytest.mark.parametrize("name", [name for name in (*TASKS, *VISIBLE_TASKS) if name != "remdm"])
def test_predictions_that_are_not_finite_are_refused(huge, name):
    with pytest.raises(CheckpointError, match="predictions .*not finite"):
        (TASKS | VISIBLE_TASKS)[name](huge)


@pytest.mark.parametrize("name", [name for name in TASKS if name != "remask_suspects"])
def test_those_of_masked_models_too(huge_masked, name):
    with pytest.raises(CheckpointError, match="predictions .*not finite"):
        TASKS[name](huge_masked)


def test_several_rows_per_call_are_checked_too(tmp_path):
    pipe = overflowing(write_model(tmp_path))
    batched = gidd.from_pretrained(tmp_path, device="cpu", batch_size=4)
    for each in (pipe, batched):
        with pytest.raises(CheckpointError, match="predictions .*not finite"):
            each.generate(n=2, length=8, steps=2)


def test_one_position_suffices(folder):
    """The other sequences of the batch are finite."""
    pipe = gidd.from_pretrained(folder, device="cpu")
    with torch.no_grad():
        pipe.denoiser.backbone.embedding.weight[pipe.tokenizer.encode("Peace")] = torch.nan
    assert pipe.infill(" of our[MASK:2]", steps=2)
    with pytest.raises(CheckpointError, match="predictions .*not finite"):
        pipe.infill("Peace[MASK:2]", steps=2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_weights_of_any_precision_can_be_used(tmp_path, dtype, precision):
    loaded = models.load(write_model(tmp_path))
    models.save(tmp_path, loaded.denoiser.to(dtype), loaded.schedule)
    pipe = gidd.from_pretrained(tmp_path, device="cpu", precision=precision)
    assert len(pipe.generate(length=8, steps=2)[0].tokens) <= 8
    assert pipe.correct("Peace", error_rate=0.1).original == "Peace"
    assert pipe.score("Peace", nodes=1, repeats=2).nelbo > 0


def test_mixed_types_are_converted_to_the_widest(tmp_path):
    loaded = models.load(write_model(tmp_path))
    loaded.denoiser.backbone.blocks.half()
    models.save(tmp_path, loaded.denoiser, loaded.schedule)
    pipe = gidd.from_pretrained(tmp_path, device="cpu")
    assert {p.dtype for p in pipe.denoiser.parameters()} == {torch.float32}
    assert pipe.score("Peace", nodes=1, repeats=2).nelbo > 0


def test_a_long_context_is_not_the_default_length(folder, tmp_path):
    """All named presets have at most 2,048 tokens."""
    pipe = gidd.from_pretrained(folder, device="cpu")
    (result,) = pipe.generate(steps=1)
    assert result.manifest["length"] == CONTEXT
    record = json.loads((folder / "gidd.json").read_text())
    record["model"]["max_length"] = 131_072
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "gidd.json").write_text(json.dumps(record))
    long = gidd.from_pretrained(tmp_path, device="cpu")
    assert long.context == 131_072
    (result,) = long.generate(steps=1)
    assert result.manifest["length"] == 2048
    (result,) = long.generate(steps=1, length=2050)
    assert result.manifest["length"] == 2050


@pytest.mark.parametrize("steps", ["1e999", '"\\u001b[2J"', "[[1]]"])
def test_any_summary_is_harmless(folder, tmp_path, steps):
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    text = (folder / "gidd.json").read_text()
    assert '"steps": 0' in text
    (tmp_path / "gidd.json").write_text(text.replace('"steps": 0', f'"steps": {steps}'))
    pipe = gidd.from_pretrained(tmp_path, device="cpu")
    assert pipe.source["steps"] is None
    (result,) = pipe.generate(length=4, steps=1)
    json.dumps(result.manifest, allow_nan=False)
    assert pipe.source["sha256"] == json.loads(text)["files"]["model.safetensors"]


@pytest.mark.slow
def test_a_damaged_tokenizer_is_not_replaced_by_gpt2s(tmp_path):
    """Only a missing one is."""
    vocab = Vocab(50258, mask_id=50257, pad_id=50256)
    models.save(tmp_path, random_denoiser(vocab, std=0.02), MaskedSchedule(vocab))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="tokenizer.json"):
        gidd.from_pretrained(tmp_path, device="cpu")
