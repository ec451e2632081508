"""What the caller passes: modules and lists stay as they are, wrong texts are refused by name."""

import copy
import pickle

import pytest
import torch
from support.small_model import TEXT, random_denoiser, write_model

import gidd
import gidd.pipeline.load
from gidd.data.tokenizers import character_level
from gidd.diffusion.schedules import HybridSchedule
from gidd.errors import ConfigError, DataError, GiddError
from gidd.pipeline import Pipeline
from gidd.sampling import TopK

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')

LETTERS = character_level("abcdefgh ")


@pytest.fixture(scope="module")
def pipe(tmp_path_factory) -> Pipeline:
    return gidd.from_pretrained(write_model(tmp_path_factory.mktemp("model")), device="cpu")


def state_of(module: torch.nn.Module) -> list[object]:
    """What a training loop relies on: modes, parameter objects, their types, devices and values."""
    return [
        *((name, part.training) for name, part in module.named_modules()),
        *(
            (name, id(p), p.requires_grad, p.dtype, p.device, p.data_ptr(), p.sum().item())
            for name, p in module.named_parameters()
        ),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_pipeline_does_not_change_the_network_of_the_caller(dtype, precision, tmp_path):
    denoiser = random_denoiser(LETTERS.vocab).to(dtype).train()
    denoiser.backbone.embedding.requires_grad_(False)
    schedule, before = HybridSchedule(LETTERS.vocab, 0.2), state_of(denoiser)
    pipe = Pipeline(denoiser, schedule, LETTERS, context=32, precision=precision)
    pipe.generate(length=6, steps=2)
    pipe.correct("abc", error_rate=0.1)
    pipe.score("abc", nodes=1, repeats=2)
    pipe.save(tmp_path)
    assert state_of(denoiser) == before
    assert not any(p.requires_grad for p in pipe.denoiser.parameters())
    assert not any(part.training for part in pipe.denoiser.modules())


def test_a_pipeline_samples_with_the_weights_of_now():
    """Sampling once in a loop of one's own: neither frozen nor out of date."""
    denoiser = random_denoiser(LETTERS.vocab)
    pipe = Pipeline(denoiser, HybridSchedule(LETTERS.vocab, 0.2), LETTERS, context=32)
    before = pipe.generate(length=12, steps=4, temperature=0)[0].text
    optimizer = torch.optim.SGD(denoiser.parameters(), lr=10.0)
    denoiser(torch.arange(8)[None], torch.tensor([0.5]))[..., 5].sum().neg().backward()
    optimizer.step()
    assert pipe.generate(length=12, steps=4, temperature=0)[0].text != before


def test_a_network_that_cannot_be_copied_is_refused():
    denoiser = random_denoiser(LETTERS.vocab)
    denoiser.backbone.source = (line for line in ())
    with pytest.raises(ConfigError, match="^the network must be .*copy.deepcopy.*generator"):
        Pipeline(denoiser, HybridSchedule(LETTERS.vocab, 0.2), LETTERS, context=32)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_a_copied_pipeline_gives_the_same(pipe, make):
    made, how = make(pipe), {"prompt": "Peace", "length": 12, "steps": 3}
    assert made.generate(n=2, **how)[1].tokens == pipe.generate(n=2, **how)[1].tokens
    assert {**made.describe()} == pipe.describe()
    made.denoiser.backbone.head.weight.zero_()
    assert pipe.denoiser.backbone.head.weight.any()


def test_lists_of_the_caller_are_not_changed(pipe):
    given = {
        "texts": ["Peace", "our public affairs"],
        "spans": [[(0, 2)], [(1, 3)]],
        "stop": ["all"],
        "processors": [TopK(5)],
        "choices": {0: ["a", "b"]},
        "messages": [{"role": "user", "content": "Peace"}],
        "tokens": list(pipe.tokenizer.encode("Peace")),
        "sampler_options": {"fill": 0.5},
    }
    before = copy.deepcopy(given)
    few = {"steps": 2, "processors": given["processors"]}
    pipe.generate(length=8, stop=given["stop"], **few)
    pipe.generate(length=8, sampler="threshold", sampler_options=given["sampler_options"], **few)
    list(pipe.stream(length=8, stop=given["stop"], **few))
    pipe.chat(given["messages"], max_tokens=2, stop=given["stop"], **few)
    list(pipe.stream_chat(given["messages"], max_tokens=2, stop=given["stop"], **few))
    pipe.infill("a[MASK]b[MASK]", choices=given["choices"], **few)
    pipe.correct(given["texts"], protected=given["spans"], error_rate=0.1)
    pipe.self_correct(TEXT[:20], protected=given["spans"][0], forward_passes=2)
    pipe.score(given["texts"], nodes=1, repeats=2)
    pipe.token_probabilities(given["tokens"])
    assert given == before


WRONG_TEXTS = {
    "generate prompt": lambda p, text: p.generate(prompt=text),
    "generate suffix": lambda p, text: p.generate(suffix=text),
    "generate negative_prompt": lambda p, text: p.generate(
        prompt="Peace", negative_prompt=text, guidance_scale=2.0
    ),
    "stream prompt": lambda p, text: p.stream(prompt=text),
    "infill template": lambda p, text: p.infill(text),
    "infill choice": lambda p, text: p.infill("a[MASK]", choices=[" b", text]),
    "correct text": lambda p, text: p.correct(text),
    "correct texts": lambda p, text: p.correct(["a", text]),
    "self_correct text": lambda p, text: p.self_correct(text),
    "noise_level text": lambda p, text: p.noise_level(text),
    "score text": lambda p, text: p.score(text),
    "score texts": lambda p, text: p.score(["a", text]),
    "score prompt": lambda p, text: p.score("a", prompt=text),
    "encode text": lambda p, text: p.encode(text, "the text"),
    "chat message": lambda p, text: p.chat([{"role": "user", "content": text}]),
    "stream_chat message": lambda p, text: p.stream_chat([{"role": "user", "content": text}]),
}
WRONG_TYPES = [5, None, b"Peace", ["Peace", "all"], {"a": 1}]
ALLOWED = {
    "generate prompt": list,
    "correct text": list,
    "score text": list,
    "generate negative_prompt": type(None),
}


@pytest.mark.parametrize(
    ("call", "text"),
    [(c, t) for c in WRONG_TEXTS for t in WRONG_TYPES if not isinstance(t, ALLOWED.get(c, str))],
)
def test_a_text_of_another_type_is_one_named_error(pipe, call, text):
    with pytest.raises((ConfigError, DataError), match="must (be|have) .*string.*, got ") as error:
        result = WRONG_TEXTS[call](pipe, text)
        list(result)
    assert isinstance(error.value, GiddError) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "spans", [(0, 3), 5, [5], [("a", "b")], [(0, 1, 2)], [(3, 1)], [(0.0, 1.0)], "ab"], ids=repr
)
def test_protected_spans_of_another_kind_are_refused(pipe, spans):
    for call in (
        lambda: pipe.correct("Peace", protected=spans),
        lambda: pipe.correct(["Peace"], protected=spans),
        lambda: pipe.self_correct("Peace", protected=spans),
        lambda: pipe.noise_level("Peace", protected=spans),
    ):
        with pytest.raises(ConfigError, match=r"protected .*\(start, stop\).*, got "):
            call()


# ---------------------------------------------------------------------------- samples as arguments

HI = [{"role": "user", "content": "Hi"}]
SAMPLES = {
    "prompt": lambda p: p.generate(prompt="Peace and all", length=24, steps=4)[0],
    "suffix": lambda p: p.generate(prompt="Peace", suffix=" and all", length=24, steps=4)[0],
    "blocks": lambda p: p.generate(prompt="Peace and", length=24, steps=4, block_length=8)[0],
    "infill": lambda p: p.infill("[MASK:6]Peace and[MASK:9] all", steps=4)[0],
    "chat": lambda p: p.chat(HI, max_tokens=12, steps=4, seed=2).generation,
}
METHODS = {
    "self_correct": {"forward_passes": 40, "temperature": 1.0, "tokens_per_step": 4},
    "correct": {"error_rate": 0.9},
}


def changed_in_given(pipe: Pipeline, sample, method: str, text) -> tuple[bool, bool]:
    """Whether a correction changes what the sample was given, and anything at all."""
    result = getattr(pipe, method)(text, **METHODS[method])
    assert result.original == sample.text
    changes = result.replacements if method == "self_correct" else result.changes
    changed = {i for c in changes for i in range(c.start, c.start + max(1, len(c.old)))}
    ends, given = 0, set()
    for token, kept in zip(pipe.decoder(sample.tokens), sample.trace.protected, strict=False):
        given |= set(range(ends, ends + len(token))) if kept else set()
        ends += len(token)
    return bool(changed & given), bool(changed)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", SAMPLES)
def test_what_a_sample_was_given_is_not_corrected(pipe, method, kind):
    sample = SAMPLES[kind](pipe)
    assert changed_in_given(pipe, sample, method, sample) == (False, True)
    assert changed_in_given(pipe, sample, method, sample.text)[0]  # a string may change anywhere


@pytest.mark.parametrize("seed", range(3))
def test_a_sample_that_a_stop_string_cut_is_corrected_as_its_text(pipe, seed):
    sample = pipe.generate(prompt="Peace", length=24, steps=4, seed=seed)[0]
    stop = sample.filled[0][5:7]  # somewhere, perhaps inside a token
    (cut,) = pipe.generate(prompt="Peace", length=24, steps=4, seed=seed, stop=[stop])
    assert pipe.correct(cut, error_rate=0.9).original == cut.text
    assert pipe.self_correct(cut, forward_passes=4).original == cut.text


def test_several_samples_are_corrected_together_as_one_by_one(pipe):
    samples = pipe.generate(n=3, prompt="Peace", length=16, steps=4)
    together = pipe.correct(samples, error_rate=0.5)
    assert [c.text for c in together] == [pipe.correct(s, error_rate=0.5).text for s in samples]


def test_a_loaded_model_is_converted_in_place(tmp_path, monkeypatch):
    """A second copy in float32 would double the memory of loading."""
    pipe = gidd.from_pretrained(write_model(tmp_path), device="cpu")
    pipe.denoiser.bfloat16()
    pipe.save(tmp_path)
    loaded, load = [], gidd.pipeline.load.load_pretrained
    monkeypatch.setattr(
        "gidd.pipeline.load.load_pretrained", lambda *a, **hub: loaded.append(load(*a)) or loaded[0]
    )
    made = gidd.from_pretrained(tmp_path, device="cpu")
    for ours, theirs in zip(
        made.denoiser.parameters(), loaded[0].denoiser.parameters(), strict=True
    ):
        assert (ours.dtype, ours.data_ptr()) == (torch.float32, theirs.data_ptr())
