"""DiffusionGemma: the numbers of transformers' own class, canvases, and what x_theta means.

tests/golden/foreign/diffusion_gemma holds a toy checkpoint with outputs of that class.
"""

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import final

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.cases import few
from support.sampling_worlds import blank_state, random_denoiser

import gidd
from gidd import models
from gidd.data import tokenizers
from gidd.diffusion.elbo import elbo_terms
from gidd.diffusion.likelihood import NelboEstimator, ScoredText, estimate_nelbo
from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedules import HybridSchedule, UniformSchedule
from gidd.errors import CheckpointError, ConfigError
from gidd.evaluation.harness import choices
from gidd.models import Denoiser
from gidd.models.backbones import diffusion_gemma
from gidd.models.backbones.diffusion_gemma import leave_one_out_shift
from gidd.models.importers import transformer_family
from gidd.models.importers.checkpoint import ForeignCheckpoint, Weights
from gidd.pipeline.noise_level import estimate_noise
from gidd.pipeline.options import SamplingOptions
from gidd.pipeline.text import ban_unwritten_tokens
from gidd.sampling import FunctionNetwork, Request, Session, WindowReader, run_sync
from gidd.sampling.predict import NetworkPredict
from gidd.sampling.steps import Renoise
from gidd.sampling.windows import TextWindows
from gidd.sources import MarkovSource
from gidd.vocab import Vocab

transformers = pytest.importorskip("transformers", minversion="5.12")

TOY = Path(__file__).parents[1] / "golden" / "foreign" / "diffusion_gemma"
LEVELS = ("low", "high")
CANVAS, BOS = 8, 2
SYMBOLS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,;:!?'-0123456789"
TEXT = "To be or not to be, that is"


@pytest.fixture(scope="module")
def golden() -> dict[str, torch.Tensor]:
    with np.load(TOY / "io.npz") as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


@pytest.fixture
def toy():
    return models.load(TOY).denoiser.requires_grad_(False)


def load(folder: Path = TOY, **options) -> gidd.Pipeline:
    tokenizer = tokenizers.character_level(SYMBOLS[:62])
    return gidd.from_pretrained(folder, device="cpu", tokenizer=tokenizer, **options)


@pytest.fixture
def pipe():
    return load()


def logits_of(denoiser, prompt, canvas):
    """Logits of p(x_i | z) of one canvas after a prompt, with no other token before it."""
    network = denoiser.backbone
    states = network.decode(canvas, network.encode(prompt))
    return network._capped(network.head(states))


# ------------------------------------------------------------------------------- the same numbers


@pytest.mark.parametrize("config", ["config.json", "config_resaved.json"])
def test_logits_are_those_of_their_class(golden, tmp_path, config):
    shutil.copy(TOY / config, tmp_path / "config.json")
    (tmp_path / "model.safetensors").symlink_to(TOY / "model.safetensors")
    toy = models.load(tmp_path).denoiser.requires_grad_(False)
    for level in LEVELS:
        pairs = zip(golden["prompt_ids"], golden[f"canvas_{level}"], strict=True)
        logits = torch.stack([logits_of(toy, *pair) for pair in pairs])
        torch.testing.assert_close(logits, golden[f"logits_{level}"], atol=3e-5, rtol=0)


def test_self_conditioning_reads_the_logits_of_a_first_pass(toy, golden):
    """Theirs are of a batch of two: the toy amplifies differences of the first pass 17 times."""
    toy.backbone.self_conditioning = True
    for level in LEVELS:
        pairs = zip(golden["prompt_ids"], golden[f"canvas_{level}"], strict=True)
        logits = torch.stack([logits_of(toy, *pair) for pair in pairs])
        expected = golden[f"logits_self_conditioned_{level}"]
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("level", LEVELS)
def test_x_theta_is_leave_one_out(toy, golden, level):
    network, canvas, t = toy.backbone, golden[f"canvas_{level}"], golden[f"t_{level}"].reshape(1)
    shift = leave_one_out_shift(t, 64).expand(CANVAS)
    for prompt, z, expected in zip(
        golden["prompt_ids"], canvas, golden[f"leave_one_out_{level}"], strict=True
    ):
        states = network.decode(z, network.encode(prompt))
        hidden = torch.cat([states, torch.stack([z.float(), shift], -1)], -1)
        x_theta = toy.distribution(hidden)
        torch.testing.assert_close(x_theta, expected.float(), atol=3e-5, rtol=0)


def test_a_sequence_is_read_in_canvases_from_its_end(toy, golden):
    """Each canvas as by their class, given all tokens before it after one bos token."""
    theirs = transformers.DiffusionGemmaForBlockDiffusion.from_pretrained(TOY).eval()
    z = torch.cat([golden["prompt_ids"][0], golden["canvas_high"][0]])  # 4 + 8 + 8 tokens
    for sequence, before in ((z, [BOS]), (torch.cat([torch.tensor([BOS]), z]), [])):
        hidden = toy.hidden(sequence[None], torch.ones(1))  # at t = 1, x_theta is the posterior
        x_theta, length = toy.distribution(hidden)[0], len(sequence)
        for start in range(length - 2 * CANVAS, length, CANVAS):
            encoded = torch.tensor([*before, *sequence[:start]])[None]
            canvas = sequence[start : start + CANVAS]
            with torch.no_grad():
                logits = theirs(input_ids=encoded, decoder_input_ids=canvas[None]).logits[0]
            ours = x_theta[start : start + CANVAS]
            torch.testing.assert_close(ours, logits.softmax(-1), atol=3e-5, rtol=0)


def test_a_step_encodes_nothing_while_the_prompt_is_the_same(toy, golden, monkeypatch):
    network, encoded = toy.backbone, []
    forward = network.encode
    monkeypatch.setattr(
        network, "encode", lambda z, c=None: (encoded.append(len(z)), forward(z, c))[1]
    )
    prompt, t = golden["prompt_ids"][0], torch.ones(1)
    for canvas in golden["canvas_low"][0], golden["canvas_high"][0]:
        states = network.hidden(torch.cat([prompt, canvas])[None], t)
    assert encoded == [1, 4, 8]  # bos, and the two canvases of the prompt, once
    longer = torch.cat([prompt, canvas, canvas])[None]
    block = network.hidden(longer, t)
    assert encoded == [1, 4, 8, 8]  # the finished canvas
    network._prompts = {}
    torch.testing.assert_close(network.hidden(longer, t), block, atol=0, rtol=0)
    torch.testing.assert_close(block[:, : len(prompt) + CANVAS], states, atol=0, rtol=0)
    monkeypatch.undo()
    network.hidden(longer, t)  # kept in float32: neither for autocast nor for a copy in bf16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = network.hidden(longer, t)
    copied = copy.deepcopy(network).bfloat16().hidden(longer, t)
    for other in (rough, copied):
        assert other.dtype == torch.float32 and not torch.equal(other, block)


@pytest.mark.slow
def test_published_tensors_are_accepted(monkeypatch, tmp_path):
    """All names and shapes of the published text model, on the meta device."""
    (published,) = json.loads((TOY / "published.json").read_text()).values()
    shapes, full = {}, published["full_attention_layers"]
    for name, shape in published["tensors"]:
        kind = ".layers.0." if ".layers.0." in name else ".layers.5."
        layers = [i for i in range(published["n_layers"]) if (i in full) == (kind == ".layers.5.")]
        if "encoder" in name:
            layers = range(published["n_layers"])
        for i in layers if kind in name else (0,):
            shapes[name.replace(kind, f".layers.{i}.")] = tuple(shape)
    shapes["model.encoder.vision_tower.any"] = (3,)
    tensors = {n: torch.empty(shape, device="meta") for n, shape in shapes.items()}
    weights = Weights(tmp_path / "model.safetensors", shapes, lambda: tensors, "0" * 64)
    monkeypatch.setattr(ForeignCheckpoint, "safetensors", lambda _: weights)
    monkeypatch.setattr(transformer_family, "try_network", lambda network: None)  # has no values
    config = published["config"] | {"model_type": "diffusion_gemma", "tie_word_embeddings": True}
    config["text_config"] |= {"bos_token_id": BOS}
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = models.load(tmp_path)
    count = sum(p.numel() for p in loaded.denoiser.parameters())
    scalars = 2 * published["n_layers"]  # buffers in their class
    assert count - scalars == published["n_params_decoder"]
    backbone = loaded.denoiser.backbone
    assert (backbone.config.canvas_length, backbone.config.max_length) == (256, 1 << 17)
    assert loaded.schedule == UniformSchedule(Vocab(262144))


WRONG = {
    **dict.fromkeys(("head_dim", "global_head_dim", "num_experts", "intermediate_size"), 10**9),
    **dict.fromkeys(("num_global_key_value_heads", "moe_intermediate_size"), 0),
    **dict.fromkeys(("bos_token_id", "top_k_experts", "max_position_embeddings"), 10**9 * 3),
    "sliding_window": 0,
    "final_logit_softcapping": 0,
    "rms_norm_eps": "x",
    "hidden_activation": "relu",
    "attention_bias": True,
    "layer_types": ["full_attention"] * 2 + ["sliding_attention"],
    "per_layer_config": {"2": {"head_dim": 10**9}},
    "rope_parameters.full_attention.rope_theta": 0,
    "rope_parameters.full_attention.rope_type": "yarn",
    "rope_parameters.full_attention.factor": 1e30,
    "rope_parameters.full_attention.partial_rotary_factor": 2,
    "rope_parameters.sliding_attention": [1],
    "hidden_size_per_layer_input": 10**12,
    "quantization_config": {"quant_method": "bitsandbytes"},
    "_attn_implementation": "kernels-community/evil",
    "attribute_map": {"hidden_size": "vocab_size"},
    "canvas_length": 0,
}


def changed_toy(tmp_path: Path, name: str, value: object) -> Path:
    """The toy with one field of its configuration replaced or added."""
    config = json.loads((TOY / "config.json").read_text())
    place = config if name == "canvas_length" else config["text_config"]
    *outer, last = name.split(".")
    for key in outer:
        place = place[key]
    place[last] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(TOY / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize("name", WRONG)
def test_a_field_of_another_value_is_refused_before_anything_is_built(name, monkeypatch, tmp_path):
    monkeypatch.setattr(diffusion_gemma, "DiffusionGemma", None)
    with pytest.raises(CheckpointError, match=f"config.json: .*{name} must be .*, got "):
        models.load(changed_toy(tmp_path, name, WRONG[name]))


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_labels", 10**9), ("id2label", {"0": 1}), ("use_cache", True), ("attention_k_eq_v", None),
     ("hidden_size_per_layer_input", 0), ("torch_dtype", "evil"), ("_name_or_path", "evil/evil"),
     ("pad_token_id", 10**9), ("initializer_range", 1e308)],
)  # fmt: skip
def test_fields_without_an_effect_on_text_are_not_passed_on(golden, tmp_path, name, value):
    toy = models.load(changed_toy(tmp_path, name, value)).denoiser.requires_grad_(False)
    logits = logits_of(toy, golden["prompt_ids"][0], golden["canvas_low"][0])
    torch.testing.assert_close(logits, golden["logits_low"][0], atol=3e-5, rtol=0)


@pytest.mark.parametrize("fault", [RuntimeError("sizes"), MemoryError(), None])
def test_a_network_that_computes_nothing_is_refused_with_its_file(monkeypatch, fault):
    """No range can tell: a token is computed."""

    def decode(self, canvas, cache):
        if fault:
            raise fault
        return torch.full((1, 32), torch.nan)

    monkeypatch.setattr(diffusion_gemma.DiffusionGemma, "decode", decode)
    with pytest.raises(CheckpointError, match=r"config.json is damaged or invalid: \w+Error: "):
        models.load(TOY)


def test_a_question_with_one_continuation_is_scored(pipe):
    """As in LAMBADA: whether all its tokens are the most likely ones."""
    text = ScoredText(torch.tensor(pipe.tokenizer.encode(TEXT)[:12]), 0, torch.arange(12) < 9)
    estimator, predicted = pipe.nelbo_estimator(nodes=1), []
    hidden = estimator.model.hidden

    def read(z, t):
        predicted.append(estimator.model.distribution(hidden(z, t))[0].argmax(-1))
        return hidden(z, t)

    estimator.model.hidden = read
    assert not choices.is_greedy(estimator, text)
    right = torch.where(text.given, text.tokens, predicted[0])  # the noise is that of the question
    assert choices.is_greedy(estimator, replace(text, tokens=right))


def test_an_older_transformers_is_refused(monkeypatch):
    old = SimpleNamespace(__version__="5.0.0")
    monkeypatch.setattr(diffusion_gemma, "optional_package", lambda *_: old)
    with pytest.raises(ConfigError, match=r"transformers 5.12 or newer, got 5.0.0"):
        models.load(TOY)


def test_it_is_neither_trained_nor_saved_here(toy, tmp_path):
    schedule = UniformSchedule(Vocab(64))
    with pytest.raises(ConfigError, match="not linear in its hidden states"):
        gidd.diffusion_loss(toy, schedule, torch.zeros(1, 8, dtype=torch.long), step=0)
    with pytest.raises(ConfigError, match="DiffusionGemmaConfig"):
        models.save(tmp_path, toy, schedule)
    with pytest.raises(ConfigError, match="^init_from must be .*got .*DiffusionGemma.*llama"):
        gidd.train(tmp_path / "run", init_from=TOY, data="sentences", steps=1)


# --------------------------------------------------------------------- posterior and leave-one-out

SIZE = 16
SOURCE, SCHEDULE = MarkovSource.random(SIZE, 0.1), UniformSchedule(Vocab(SIZE))


def noisy_text(t: float, length: int, num: int):
    """Texts of an exact source and their noisy versions."""
    x = SOURCE.sample(0, torch.arange(num), length)
    times = torch.full((num,), t, dtype=torch.float64)
    u = random_integers(0, Stream.NOISE, 0, torch.arange(num), torch.arange(length))
    return times, x, noise(SCHEDULE, times, x, u)


def posterior_without_time(z: torch.Tensor) -> torch.Tensor:
    """p(x_i | z) with t uniform in [1e-3, 1]: what a network that is not given t learns."""
    low, high = torch.logspace(-3, -1, 13).double(), torch.linspace(0.1, 1, 19).double()
    ends = torch.cat([low, high[1:]])
    found, log_weight = [], []
    for t, width in zip((ends[1:] + ends[:-1]) / 2, ends.diff(), strict=True):
        times = t.expand(len(z))
        log_likelihood = SOURCE._forward(SOURCE._evidence(SCHEDULE, times, z))[1].sum(-1)
        found.append(SOURCE.posterior(SCHEDULE, times, z))
        log_weight.append(log_likelihood + width.log())
    weight = torch.stack(log_weight).softmax(0)  # p(t | z)
    return (weight[..., None, None] * torch.stack(found)).sum(0)


def converted(posterior: torch.Tensor, z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    shift = leave_one_out_shift(t, SIZE)[:, None, None].expand(*z.shape, 1)
    return posterior.log().scatter_add(-1, z[..., None], -shift.to(posterior)).softmax(-1)


FIGURES = {
    (0.01, 4): (0.56, 0.37, 2.36, 9.40, 5.70),
    (0.1, 4): (0.34, 0.40, 1.68, 2.43, 3.74),
    (0.5, 4): (0.12, 0.36, 1.70, 1.77, 2.68),
    (0.9, 4): (0.20, 0.30, 0.87, 1.07, 1.45),
    (0.01, 256): (0.06, 0.29, 1.61, 1.61, 4.47),
    (0.1, 256): (0.04, 0.33, 1.20, 1.22, 2.85),
    (0.5, 256): (0.04, 0.33, 1.61, 1.62, 2.62),
    (0.9, 256): (0.04, 0.10, 0.89, 0.89, 0.98),
}
"""By time and length: mean total variation of p(x_i | z) from leave-one-out, converted and not;
the integrand of the NELBO per token with leave-one-out, with p(x_i | z) converted, and not."""


@pytest.mark.parametrize("case", few(FIGURES, every=3), ids=str)
def test_the_conversion_is_exact_where_the_canvas_reveals_the_time(case):
    """Exact for p(x_i | z, t); for p(x_i | z), which has to infer t, only in a long canvas.

    The table of docs/importers.md. Posteriors are exact: recursions over the source, which
    enumeration confirms in tests/sources.
    """
    t, length = case
    times, x, z = noisy_text(t, length, num=max(16, 2048 // length))
    exact = SOURCE.leave_one_out(SCHEDULE, times, z)

    def distance(x_theta: torch.Tensor) -> float:
        return float((x_theta - exact).abs().sum(-1).mean()) / 2

    def bound(x_theta: torch.Tensor) -> float:
        terms = elbo_terms(SCHEDULE, times, x, z, x_theta)
        return float((terms.weight * terms.divergence).mean())

    assert distance(converted(SOURCE.posterior(SCHEDULE, times, z), z, times)) < 1e-14
    plain = posterior_without_time(z)
    ours = converted(plain, z, times)
    found = distance(ours), distance(plain), bound(exact), bound(ours), bound(plain)
    assert found == pytest.approx(FIGURES[t, length], abs=6e-3)


def test_the_noise_level_is_the_expected_fraction_of_wrong_tokens():
    _, x, z = noisy_text(0.3, 256, num=8)
    posterior = posterior_without_time(z)

    def x_theta(rows: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        (which,) = (rows[:, None] == z).all(-1).nonzero()[:, 1:].T
        return converted(posterior[which], rows, t)

    reader = WindowReader(
        Session(FunctionNetwork(x_theta), SCHEDULE), 1e-3, 1.0, predicts_posterior=True
    )
    errors, variance = [], 0.0
    for k in range(8):
        cut = TextWindows(z[k].tolist(), [False] * 256, 256)
        level = run_sync(estimate_noise(reader, cut))
        own = 1 - posterior[k].gather(-1, z[k, :, None])
        assert level.error_rate == pytest.approx(float(own.mean()), abs=1e-6)
        assert level.low < level.error_rate < level.high and level.forward_passes == 1
        errors.append(level.error_rate - float((x[k] != z[k]).double().mean()))
        variance += ((level.high - level.low) / 2 / 1.96) ** 2
    assert abs(sum(errors)) < 4 * variance**0.5  # no bias


# ------------------------------------------------------------------------------------ their sampler


def test_renoise_accepts_the_tokens_that_their_sampler_accepts(golden):
    """Step 3 of 6, t = 1/2, entropy bound 5: the temperature is 0.4 + 0.4 / 2."""
    logits, z = golden["logits_high"], golden["canvas_high"]
    schedule, t = UniformSchedule(Vocab(64)), torch.full((2,), 0.5)
    shift = leave_one_out_shift(t, 64)[:, None, None].expand(2, CANVAS, 1)
    x_theta = logits.scatter_add(-1, z[..., None], -shift).softmax(-1)
    state = blank_state(schedule, 2, CANVAS)
    state.tokens[:] = z
    predict = NetworkPredict(FunctionNetwork(lambda *_: x_theta), 64, 2)
    output = Renoise(entropy_bound=5.0)(schedule, t - 1 / 6, t, state, predict)
    accepted = golden["step3_accepted"]
    assert torch.equal(output.probability > 0, accepted) and 0 < accepted.sum() < 16
    assert torch.equal(output.best, logits.argmax(-1))
    assert not output.is_converged.any()


def test_renoise_stops_when_the_result_repeats():
    certain = torch.nn.functional.one_hot(torch.tensor(7), 64).float()
    schedule = UniformSchedule(Vocab(64))
    session = Session(FunctionNetwork(lambda z, t: certain.expand(*z.shape, -1)), schedule)
    plan = SamplingOptions(steps=48, sampler="renoise").plan()
    (sample,) = session.sample([Request(tokens=(3, None, None), plan=plan)])
    assert sample.tokens == (3, 7, 7) and sample.forward_passes == 2
    with pytest.raises(ConfigError, match="entropy_bound must be .*got 0"):
        Renoise(entropy_bound=0)


# ----------------------------------------------------------------------------------- in a pipeline


@pytest.mark.parametrize("sampler", ["renoise", "ancestral"])
def test_generate_samples_one_canvas_after_the_other(pipe, sampler):
    options = {"sampler": sampler, "steps": 6, "final_corrector_steps": 2}
    [sample] = pipe.generate(prompt="To be or", max_tokens=2 * CANVAS, **options)
    assert sample.text.startswith("To be or") and sample.manifest["block_length"] == CANVAS
    assert "".join(
        pipe.stream(prompt="To be or", max_tokens=16, block_length=CANVAS, **options).pieces()
    ) == (sample.text)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_weights_in_bf16_are_read(tmp_path, precision):
    shutil.copy(TOY / "config.json", tmp_path)
    tensors = load_file(TOY / "model.safetensors")
    norms_kept = {n: v if "norm" in n else v.bfloat16() for n, v in tensors.items()}
    save_file(norms_kept, tmp_path / "model.safetensors")
    [sample] = load(tmp_path, precision=precision).generate(prompt="To be", max_tokens=8, steps=2)
    assert sample.text.startswith("To be")


def test_infill_reads_both_sides_inside_a_canvas(pipe):
    [sample] = pipe.infill("To [MASK:3] be", steps=4)
    assert len(sample.text) == 9 and sample.text.startswith("To ") and sample.text.endswith(" be")


@final
class Adjusted(torch.nn.Module):
    """A network with a linear head, as one without."""

    def __init__(self, network):
        super().__init__()
        self.network, self.head = network, network.head

    def hidden(self, z, t):
        return torch.cat([self.network.hidden(z, t), z[..., None].float()], -1)

    def adjust_logits(self, logits, columns):
        assert columns.shape == (len(logits), 1)
        return logits


def test_scores_without_a_linear_head_are_those_with_one():
    vocab = Vocab(65, mask_id=64)
    schedule, linear = HybridSchedule(vocab, 0.2), random_denoiser(vocab)
    given = torch.arange(12) < 3
    texts = [ScoredText(torch.arange(12), 0, given), ScoredText(torch.arange(12) * 5, 1)]
    expected, found = (
        estimate_nelbo(NelboEstimator(model, schedule, nodes=3), texts, repeats=2)
        for model in (linear, Denoiser(Adjusted(linear.backbone), vocab))
    )
    torch.testing.assert_close(found.draws, expected.draws, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.prior, expected.prior, atol=1e-6, rtol=1e-4)


def test_score_is_given_the_text_before_a_canvas(pipe, monkeypatch):
    """Canvases of 8 + 8 + 8 + 3 tokens: in each, at most 8 tokens are noised, and the last ones."""
    tokens, noised = torch.tensor(pipe.encode(TEXT, "the text")), {}
    network = pipe.denoiser.backbone
    hidden = network.hidden

    def watched(z, t):
        changed = (z != tokens[: z.shape[1]]).any(0).nonzero()
        noised.setdefault(z.shape[1], set()).update(changed.flatten().tolist())
        return hidden(z, t)

    monkeypatch.setattr(network, "hidden", watched)
    scores = pipe.score(TEXT, nodes=4, repeats=2, confidence=False)
    assert scores.nelbo > 0
    assert {length: min(places) // CANVAS for length, places in noised.items()} == {
        8: 0, 16: 1, 24: 2, 27: 3
    }  # fmt: skip


@pytest.mark.parametrize("error_rate", [0.05, 0.5, None])
def test_correct_uses_the_posterior_of_the_network(pipe, error_rate):
    """Whatever the error rate: the network infers it."""
    z = torch.tensor(pipe.encode(TEXT, "the text"))[None]
    posterior = pipe.denoiser(z, torch.ones(1))[0]  # at t = 1 nothing is converted
    own = posterior.gather(-1, z[0, :, None]).squeeze(-1)
    writable = ban_unwritten_tokens(pipe.schedule.vocab, pipe.decoder)(posterior)
    correction = pipe.correct(TEXT, error_rate=error_rate)
    assert correction.edits and len(correction.text) == len(TEXT)
    for edit in correction.edits:
        expected = float(writable[edit.start, z[0, edit.start]])
        assert edit.probability_of(edit.old) == pytest.approx(expected, abs=1e-6)
    if error_rate is None:
        assert correction.error_rate == pytest.approx(1 - float(own.mean()), abs=1e-6)
    assert pipe.score(TEXT, nodes=2, repeats=2).noise_level == pipe.noise_level(TEXT)
    assert len(pipe.self_correct(TEXT, forward_passes=2).text) == len(TEXT)
