"""Guidance of text, the prompt and the negative prompt, and choices for blanks."""

import pytest
import torch
from support.small_model import random_denoiser, write_model

import gidd
from gidd.data.tokenizers import character_level, train_tokenizer
from gidd.diffusion.schedules import MaskedSchedule, UniformSchedule
from gidd.errors import ConfigError, DataError
from gidd.models import Denoiser
from gidd.models.backbones import BidirectionalConfig
from gidd.pipeline import Pipeline, SamplingOptions
from gidd.pipeline.generate import build_guidance
from gidd.vocab import Vocab

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')

HOW = {"length": 16, "steps": 6}


@pytest.fixture(scope="module")
def pipe(tmp_path_factory) -> Pipeline:
    return gidd.from_pretrained(write_model(tmp_path_factory.mktemp("model")), device="cpu")


def test_guidance_changes_samples_and_no_given_text(pipe):
    texts = set[str]()
    for scale in (1, 30, 100):
        how = HOW | {"guidance_scale": scale, "record_frames": True, "confidence": True}
        (made,) = pipe.generate(prompt="Peace", suffix=" all", **how)
        assert made.text.startswith("Peace") and made.text.endswith(" all")
        assert made.manifest.get("guidance_scale", 1) == scale
        assert len(made.trace.frames) == 7 and len(made.confidence) == 16
        texts.add(made.text)
    assert len(texts) == 3
    assert pipe.generate(prompt="Peace", **HOW)[0].text == (
        pipe.generate(prompt="Peace", **HOW, guidance_scale=1.0)[0].text
    )


def test_blocks_are_guided_by_the_prompt_alone(pipe):
    """A block sees those before it in both rows."""
    how = HOW | {"prompt": "Peace", "block_length": 4, "guidance_scale": 3.0}
    (whole,) = pipe.generate(**how)
    assert "".join(pipe.stream(**how).pieces()) == whole.text
    assert whole.text != pipe.generate(**how | {"guidance_scale": 1.0})[0].text


def test_a_negative_prompt_ends_at_the_first_blank(pipe):
    negative = pipe.tokenizer.encode("al")
    assert len(negative) == 2
    mask, options = pipe.schedule.vocab.mask_id, SamplingOptions(guidance_scale=2.0)
    tokens = (5, 6, 7, None, None, 8)
    found = build_guidance(pipe, tokens, options)
    assert found.tokens == (mask, mask, mask, None, None, mask)
    options = SamplingOptions(guidance_scale=2.0, negative_prompt="al")
    found = build_guidance(pipe, tokens, options)
    assert found.tokens == (mask, *negative, None, None, mask)
    how = HOW | {"prompt": "Peace", "guidance_scale": 30}
    texts = {pipe.generate(**how, negative_prompt=n)[0].text for n in (None, "al", "of")}
    assert len(texts) == 3


@pytest.mark.parametrize(
    "how, error, match",
    [
        ({"prompt": ""}, ConfigError, "guidance_scale must be 1 if no text is given, got 2"),
        ({"prompt": "a", "negative_prompt": "Peace"}, DataError, "negative prompt .* 1, got"),
    ],
)
def test_mistakes(pipe, how, error, match):
    with pytest.raises(error, match=match):
        pipe.generate(**{"prompt": "Peace", "guidance_scale": 2.0} | HOW | how)


def test_without_a_mask_token_the_negative_prompt_replaces_all_that_is_given():
    vocab = train_tokenizer(["We are a nation of laws."], 300)
    plain = Vocab(vocab.vocab.size)
    pipe = Pipeline(random_denoiser(plain), UniformSchedule(plain), vocab, context=32)
    how = HOW | {"guidance_scale": 2.0, "prompt": "ab"}
    with pytest.raises(ConfigError, match="every given token, 2, got 1"):
        pipe.generate(**how, negative_prompt="b")
    assert pipe.generate(**how, negative_prompt="cd")[0].text.startswith("ab")


def test_a_blank_becomes_one_of_its_choices(pipe):
    for p in (1.0, 2.0):
        made = pipe.infill(
            "Peace[MASK] all", n=8, choices=["a", "b", "c"], steps=4, guidance_scale=p
        )
        assert {one.filled[0] for one in made} <= {"a", "b", "c"}
        assert all(one.text == f"Peace{one.filled[0]} all" for one in made)
        assert made[0].manifest["constraints"] == ["the choices ['a', 'b', 'c']"]
    assert len({one.filled for one in made}) > 1
    choices = {1: ["bc", "de"]}
    for one in pipe.infill("a[MASK:3]p[MASK:2]q[MASK]", n=4, choices=choices, steps=4):
        assert one.filled[1] in choices[1] and len(one.tokens) == 9


@pytest.mark.parametrize(
    "template, choices, error, match",
    [
        ("a[MASK]", ["b", "cd"], DataError, "blank, 1, got 1 in 'b', 2 in 'cd'. .* equal length"),
        ("a[MASK]", ["bc", "cd"], DataError, r"blank, 1, got 2 in 'bc', .* Write \[MASK:2\]"),
        ("a[MASK]", [*"bcdefghij", "kl"], DataError, r"1 in 'i', \.\.\.\. Take"),
        ("a[MASK]", 5, ConfigError, "choices must be .*got 5"),
        ("a[MASK]", {0: "bc"}, ConfigError, "choices must be .*got {0: 'bc'}"),
        ("a[MASK]", {"0": ["b"]}, ConfigError, "choices must be .*got {'0':"),
        ("a[MASK]b[MASK]", ["b", "c"], ConfigError, "choices must be .* for 2 blanks"),
        ("a[MASK]", {1: ["b", "c"]}, ConfigError, "choices must be .* for 1 blanks"),
        ("a[MASK]", "bc", ConfigError, "choices must be .*got 'bc'"),
    ],
)
def test_wrong_choices(pipe, template, choices, error, match):
    with pytest.raises(error, match=match):
        pipe.infill(template, choices=choices, steps=2)


def test_a_network_that_needs_the_first_token_keeps_it_without_the_condition():
    tokenizer = character_level("abcdefgh")
    vocab = tokenizer.vocab
    config = BidirectionalConfig(
        vocab_size=vocab.size, max_length=16, width=16, num_layers=1, num_heads=2,
        num_kv_heads=2, mlp_width=16, rotary_base=1e4, norm_eps=1e-6,
        shifted_mask_id=vocab.mask_id,
    )  # fmt: skip
    torch.manual_seed(0)
    denoiser = Denoiser(config.build(), vocab)
    pipe = Pipeline(denoiser, MaskedSchedule(vocab), tokenizer, context=16)
    how = HOW | {"prompt": "abc", "sampler": "confidence"}
    texts = {pipe.generate(**how, guidance_scale=scale)[0].text for scale in (1, 50)}
    assert len(texts) == 2 and all(text.startswith("abc") for text in texts)
    assert pipe.generate(**how, guidance_scale=2.0, negative_prompt="dc")[0].text.startswith("abc")
    with pytest.raises(ConfigError, match="^guidance_scale must be 1 if only the first token"):
        pipe.generate(**HOW, prompt="a", guidance_scale=2.0)
