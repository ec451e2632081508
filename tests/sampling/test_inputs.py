"""Processors of x_theta, templates and prompts."""

import time
from contextlib import suppress

import pytest
import torch
from hypothesis import given, strategies as st
from support.strategies import random_x_theta

from gidd.errors import ConfigError, DataError
from gidd.sampling import (
    Ban,
    EpsilonCutoff,
    MinP,
    Require,
    Temperature,
    TopK,
    TopP,
    ban,
    parse_template,
)
from gidd.sampling.request import blanks, prompt
from gidd.vocab import Vocab

VOCAB = Vocab(12, mask_id=11)
PROCESSORS = [
    Temperature(0.5),
    Temperature(0.0),
    Temperature(3.0),
    TopK(3),
    TopK(100),
    TopP(0.7),
    TopP(1.0),
    EpsilonCutoff(0.05),
    MinP(0.2),
    ban(VOCAB, [0, 4]),
    Require(VOCAB, frozenset({2, 3, 5})),
]


@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda p: f"{type(p).__name__}")
@given(seed=st.integers(0, 999))
def test_processors_return_distributions_and_never_the_mask(processor, seed):
    p = random_x_theta(VOCAB, 7, seed=seed).float()
    before = p.clone()
    q = processor(p)
    assert torch.equal(p, before)
    torch.testing.assert_close(q.sum(-1), torch.ones(7))
    assert (q >= 0).all()
    assert (q[:, 11] == 0).all()
    most_likely = q.gather(-1, p.argmax(-1, keepdim=True)).squeeze(-1)
    if not isinstance(processor, Require | Ban):
        assert torch.equal(most_likely, q.amax(-1))


def test_temperature_divides_logits():
    """From probabilities, down to temperatures at which powers would underflow."""
    logits = 5 * torch.randn(4, 50, generator=torch.Generator().manual_seed(0)).double()
    for value in (0.01, 0.1, 0.7, 1.0, 2.5):
        expected = (logits / value).softmax(-1)
        torch.testing.assert_close(Temperature(value)(logits.softmax(-1)), expected)
    greedy = Temperature(0.0)(logits.softmax(-1))
    assert torch.equal(greedy.argmax(-1), logits.argmax(-1))
    assert torch.equal(greedy.amax(-1), torch.ones(4).double())


def test_truncation_keeps_the_right_tokens():
    p = torch.tensor([[0.4, 0.3, 0.15, 0.1, 0.05]])
    kept = {
        TopK(2): [0, 1],
        TopP(0.7): [0, 1],
        TopP(0.71): [0, 1, 2],
        TopP(0.1): [0],
        EpsilonCutoff(0.12): [0, 1, 2],
        EpsilonCutoff(0.9): [0],
        MinP(0.3): [0, 1, 2],
    }
    for processor, expected in kept.items():
        q = processor(p)
        assert q[0].nonzero().squeeze(-1).tolist() == expected, processor
        torch.testing.assert_close(q[0, expected], p[0, expected] / p[0, expected].sum())


def test_required_and_banned_tokens():
    p = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.25, 0.75, 0.0]])
    vocab = Vocab(4, mask_id=3)
    only = Require(vocab, frozenset({0, 2}))(p)
    torch.testing.assert_close(only, torch.tensor([[1.0, 0, 0, 0], [0, 0, 1.0, 0]]))
    impossible = Require(vocab, frozenset({2}))(p)
    assert impossible[0].tolist() == [0, 0, 1, 0]  # uniform over the required tokens
    assert ban(vocab, [1])(p)[1].tolist() == [0, 0, 1, 0]


def test_a_ban_leaves_all_other_data_tokens():
    """It is bit for bit a requirement of the tokens that it leaves; the mask is never one."""
    p = random_x_theta(VOCAB, 7, seed=1).float()
    p[3] = 0
    p[3, 4] = 1  # only banned tokens: uniform over the others
    for banned in ([], [4], [0, 4, 7], [4, 11], range(10)):
        processor = ban(VOCAB, banned)
        kept = Require(VOCAB, frozenset(range(11)) - set(banned))
        assert torch.equal(processor(p), kept(p))
        assert processor.num_allowed == kept.num_allowed == 11 - len({*banned} - {11})
    assert ban(VOCAB, [0, 4, 7])(p)[3].tolist() == pytest.approx(
        [0] + [1 / 8] * 3 + [0] + [1 / 8] * 2 + [0] + [1 / 8] * 3 + [0]
    )


def test_equal_bans_are_one_object_with_one_mask():
    """A second request with the same ban builds nothing and uploads nothing."""
    vocab = Vocab(50258, mask_id=50257)
    banned = frozenset(range(0, 50000, 100))
    first = ban(vocab, banned)
    assert ban(Vocab(50258, mask_id=50257), sorted(banned, reverse=True)) is first
    assert first == Ban(vocab, banned) and hash(first) == hash(Ban(vocab, banned))
    assert first != ban(vocab, banned - {0}) and first != Require(vocab, banned)
    mask = first.allowed(torch.device("cpu"))
    assert Ban(vocab, frozenset(sorted(banned))).allowed(torch.device("cpu")) is mask
    assert mask.sum() == first.num_allowed == 50257 - 500
    with torch.inference_mode():
        later = ban(vocab, [1]).allowed(torch.device("cpu"))
    assert not later.is_inference()  # it may be used for gradients as well


@pytest.mark.parametrize("make", [ban, lambda vocab, tokens: Require(vocab, frozenset(tokens))])
def test_tokens_of_another_vocabulary_are_refused(make):
    processor = make(VOCAB, [1, 2])
    processor.check(Vocab(12, mask_id=11, pad_id=3))
    for other in (Vocab(13, mask_id=11), Vocab(12, mask_id=0), Vocab(12)):
        with pytest.raises(ConfigError, match=r"tokens .*Vocab\(size=1.*tokenizer"):
            processor.check(other)


def test_extreme_temperature_and_top_p():
    """A temperature that float32 cannot divide by is greedy; mass 1 keeps all tokens."""
    rows = torch.rand(3, 50258, generator=torch.Generator().manual_seed(0)).softmax(-1)
    assert torch.equal(Temperature(1e-46)(rows), Temperature(0)(rows))
    assert torch.equal(TopP(1)(rows), rows)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Temperature(-1), r"Temperature.value .*\[0, .*, got -1"),
        (lambda: Temperature(float("nan")), r"Temperature.value .*\[0, .*, got nan"),
        (lambda: Temperature("1"), r"Temperature.value .*\[0, .*, got '1'"),
        (lambda: TopK(0), "TopK.k .*at least 1.*got 0"),
        (lambda: TopK(2.5), "TopK.k .*an integer.*got 2.5"),
        (lambda: TopP(0), r"TopP.mass .*\(0, 1\], got 0"),
        (lambda: TopP(1.5), r"TopP.mass .*\(0, 1\], got 1.5"),
        (lambda: EpsilonCutoff(1.0), r"EpsilonCutoff.minimum .*\[0, 1\), got 1.0"),
        (lambda: MinP(-0.1), r"MinP.ratio .*\[0, 1\), got -0.1"),
        (lambda: Require(VOCAB, frozenset()), r"required .*at least one .*got \[\]"),
        (lambda: Require(VOCAB, frozenset({11})), r"mask \(11\), got \[11\]"),
        (lambda: Require(VOCAB, frozenset({12})), r"required .*\[0, 12\).*got \[12\]"),
        (lambda: ban(VOCAB, range(11)), r"banned .*at least one .*got \[0, 1, 2"),
        (lambda: ban(VOCAB, [12]), r"banned .*\[0, 12\).*\[12\]"),
        (lambda: ban(VOCAB, ["a", 1]), r"banned .*\[0, 12\).*\['a'\]"),
    ],
)
def test_impossible_processors_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def encode(text: str, starts: bool = True) -> list[int]:
    return [ord(c) for c in text]


@pytest.mark.parametrize(
    ("template", "tokens"),
    [
        ("ab[MASK:3]c", (97, 98, None, None, None, 99)),
        ("[MASK]", (None,)),
        ("[MASK][MASK:2]x", (None, None, None, 120)),
        ("no blank", tuple(encode("no blank"))),
        ("[MASK :2]", tuple(encode("[MASK :2]"))),  # not a blank: plain text
        ("a[mask]", tuple(encode("a[mask]"))),
    ],
)
def test_templates(template, tokens):
    assert parse_template(template, encode).tokens == tokens


BLANKS = ["[MASK:0]", "a [MASK:-1]", "[MASK:three]", "[MASK:]", "[MASK:1000001]", "[MASK:3 a"]


@pytest.mark.parametrize(
    "template",
    [
        *BLANKS,
        "[MASK:" + "9" * 5000 + "]",
        pytest.param("[MASK:" * 160_000, id="a pattern that looks for each end takes minutes"),
    ],
)
def test_invalid_blanks_are_refused(template):
    with pytest.raises(DataError, match=r"1 to 1,000,000, got \[MASK:"):
        parse_template(template, encode)
    with pytest.raises(DataError, match="empty"):
        parse_template("", encode)


def test_the_blanks_of_a_template_are_limited_in_sum():
    with pytest.raises(DataError, match=r"1,000,000 blanks, got 1,000,002"):
        parse_template("[MASK:500001]" * 70_000, encode)


@pytest.mark.perf
@pytest.mark.parametrize("piece", ["[MASK:", "[MASK]", "[MASK:3]a", "[MASK:333333333333"])
def test_templates_are_parsed_in_linear_time(piece):
    def seconds(number: int) -> float:
        start = time.process_time()
        with suppress(DataError):
            parse_template(piece * number, encode)
        return time.process_time() - start

    for number in (20_000, 40_000, 80_000):
        least = min(seconds(number) for _ in range(5))
        assert min(seconds(2 * number) for _ in range(5)) < 2.3 * least + 0.001


def test_prompts():
    assert prompt(4) == (None,) * 4
    assert prompt(4, [1, 2]) == (1, 2, None, None)
    assert prompt(4, [1], [3]) == (1, None, None, 3)
    assert prompt(3, [1], [3]) == (1, None, 3)


@pytest.mark.parametrize(
    ("length", "prefix", "suffix"), [(4, (1, 2, 3), (4, 5)), (2, (1,), (3,)), (2, (1, 2), ())]
)
def test_prompts_without_a_blank_are_refused(length, prefix, suffix):
    message = f"{length} tokens, got {len(prefix)} and {len(suffix)} tokens"
    with pytest.raises(DataError, match=message):
        prompt(length, prefix, suffix)


@pytest.mark.parametrize("length", [0, -1])
def test_a_length_below_one_is_refused(length):
    for make in (prompt, blanks):
        with pytest.raises(ConfigError, match=f"length .*from 1 .*got {length}"):
            make(length)
