"""Models that were trained in blocks: saved, loaded, and used by every method."""

from itertools import pairwise

import pytest
from support.small_model import write_model
from support.training_runs import speeches, tiny_run, train_here

import gidd
from gidd.errors import ConfigError, DataError
from gidd.runs.export import export
from gidd.training.world import open_world

CONTEXT = 64
QUICK = {"steps": 2, "stop": ()}


@pytest.fixture(scope="module")
def pipe(tmp_path_factory):
    whole = gidd.from_pretrained(
        write_model(tmp_path_factory.mktemp("model"), context=CONTEXT), device="cpu"
    )
    return gidd.Pipeline(**whole._arguments | {"block_lengths": (8, 4, 16)})


def test_block_lengths_are_those_of_the_run(tmp_path):
    from dataclasses import replace

    run = tiny_run(speeches(tmp_path / "data", 300, 8), steps=2, generate_samples=1)
    run = replace(run, objective=replace(run.objective, block_lengths=(4, 8)))
    train_here(run, tmp_path / "run")
    with open_world("cpu", 600) as world:
        export(tmp_path / "run", tmp_path / "model", world)
    pipe = gidd.from_pretrained(tmp_path / "model", device="cpu")
    assert pipe.block_lengths == (4, 8) and pipe.default_block_length == 4
    pipe.save(tmp_path / "saved")
    again = gidd.from_pretrained(tmp_path / "saved", device="cpu")
    assert again.block_lengths == (4, 8)
    texts = [each.generate("I", length=12, steps=2)[0].tokens for each in (pipe, again)]
    assert texts[0] == texts[1]
    assert pipe.to("cpu").session.block_lengths == (4, 8)


def test_text_is_longer_than_the_context(pipe):
    (text,) = pipe.generate("Peace", max_tokens=150, **QUICK)
    assert len(text.tokens) > CONTEXT or text.tokens[-1] in pipe.tokenizer.terminator_ids
    assert text.manifest["block_length"] == 8
    plain = gidd.Pipeline(**pipe._arguments | {"block_lengths": ()})
    with pytest.raises(DataError, match="max_tokens must be at most"):
        plain.generate("Peace", max_tokens=150, **QUICK)


def test_a_stream_is_the_text(pipe):
    settings = {"max_tokens": 80, "seed": 3, **QUICK}
    (text,) = pipe.generate("Peace and", **settings)
    assert "".join(pipe.stream("Peace and", **settings).pieces()) == text.text


def test_turns_of_a_chat_continue_the_cache(tmp_path):
    plain = gidd.from_pretrained(write_model(tmp_path, context=256), device="cpu")
    pipe = gidd.Pipeline(**plain._arguments | {"block_lengths": (8,)})
    misses, messages, cache = [0], [], pipe.session.cache
    for turn in range(3):
        messages = [*messages, {"role": "user", "content": f"Peace {turn}?"}]
        answer = pipe.chat(messages, max_tokens=6, steps=2)
        messages = list(answer.messages)
        misses.append(cache.misses)
    first, second, third = (b - a for a, b in pairwise(misses))
    assert third <= second + 8  # what a turn adds, not the conversation
    assert third < len(answer.generation.tokens) / 2


def test_the_likelihood_is_the_bound_over_blocks(pipe):
    assert pipe.nelbo_estimator().block_length == 8
    text = "Peace and plenty for all of us."
    one = gidd.Pipeline(**pipe._arguments | {"block_lengths": (CONTEXT,)})
    whole = gidd.Pipeline(**pipe._arguments | {"block_lengths": ()})
    settings = {"nodes": 2, "repeats": 2}
    bounds = [each.score(text, **settings).nelbo for each in (pipe, one, whole)]
    assert bounds[1] == pytest.approx(bounds[2], rel=1e-5)
    assert abs(bounds[0] - bounds[1]) > 1e-3


def test_what_reads_a_long_text_as_a_whole_is_refused(pipe):
    message = "at most 16 tokens can be read together"
    long = "Peace and plenty for all of us, and more of it for everybody else."
    for call in (
        lambda: pipe.generate("Peace", suffix=long, length=60, steps=2),
        lambda: pipe.generate("Peace", length=40, confidence=True, **QUICK),
        lambda: pipe.generate("Peace", length=40, block_length=32, **QUICK),
        lambda: pipe.infill(f"{long} [MASK:3]", steps=2),
    ):
        with pytest.raises(ConfigError, match=message):
            call()
    (short,) = pipe.infill("Pe[MASK:3]e", steps=2)
    assert short.tokens
    assert pipe.correct(long).text  # by windows of the longest block


def test_the_command_revises_a_single_sample(pipe, tmp_path, capsys):
    """A single sample in blocks is streamed, but not if finished blocks may change."""
    from gidd.cli.sample import main

    pipe.save(tmp_path / "model")
    options = {"block_length": 4, "revise": 1, "final_corrector_steps": 2, "steps": 2}
    (expected,) = pipe.generate("I", length=16, seed=3, **options)
    command = [str(tmp_path / "model"), "--prompt", "I", "--length", "16", "--seed", "3"]
    words = [(f"--{name.replace('_', '-')}", str(value)) for name, value in options.items()]
    main([*command, *(word for pair in words for word in pair), "--device", "cpu"])
    assert capsys.readouterr().out.strip() == expected.text.strip()
