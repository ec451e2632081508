"""Where a text ends: a number of new tokens, and stop strings."""

import pytest
from support.small_model import CONTEXT, write_model

import gidd
from gidd.cli import main
from gidd.errors import ConfigError, DataError
from gidd.pipeline import Pipeline

PROMPT = "Peace"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def pipe(folder) -> Pipeline:
    return gidd.from_pretrained(folder, device="cpu")


def test_max_tokens_counts_new_tokens(pipe):
    given = len(pipe.tokenizer.encode(PROMPT))
    (new,) = pipe.generate(prompt=PROMPT, max_tokens=9, steps=2)
    (same,) = pipe.generate(prompt=PROMPT, length=given + 9, steps=2)
    assert len(new.trace.tokens) == given + 9 and new.text == same.text
    pieces = pipe.stream(PROMPT, max_tokens=9, steps=2, block_length=4).pieces()
    (whole,) = pipe.generate(prompt=PROMPT, max_tokens=9, steps=2, block_length=4)
    assert "".join(pieces) == whole.text
    most = CONTEXT - given
    assert len(pipe.generate(prompt=PROMPT, max_tokens=most, steps=1)[0].trace.tokens) == CONTEXT
    with pytest.raises(DataError, match=f"at most {most}, .* {CONTEXT} .* {given} .* {most + 1}"):
        pipe.generate(prompt=PROMPT, max_tokens=most + 1)
    with pytest.raises(ConfigError, match="max_tokens must be None if length is given, got 4 and"):
        pipe.stream(prompt=PROMPT, max_tokens=4, length=20)
    with pytest.raises(ConfigError, match="max_tokens must be an integer of at least 1.*got 0"):
        pipe.generate(max_tokens=0)


@pytest.mark.parametrize("seed", range(6))
def test_a_text_ends_before_the_first_stop_string(pipe, seed):
    settings = {"prompt": PROMPT, "max_tokens": 20, "steps": 2, "seed": seed}
    (whole,) = pipe.generate(confidence=True, **settings)
    generated = whole.text.removeprefix(PROMPT)
    place = 5
    stop = generated[place : place + 2]
    place = generated.index(stop)
    (cut,) = pipe.generate(confidence=True, stop=["never!", stop], **settings)
    assert cut.text == PROMPT + generated[:place] and cut.filled == (generated[:place],)
    assert cut.tokens == whole.tokens[: len(cut.tokens)] and len(cut.confidence) == len(cut.tokens)
    # the tokens end before the one in which the stop string begins
    assert cut.text.startswith("".join(pipe.decoder(cut.tokens)))
    longer = "".join(pipe.decoder(whole.tokens)[: len(cut.tokens) + 1])
    assert len(longer) > len(cut.text)
    assert cut.trace == whole.trace and cut.forward_passes == whole.forward_passes
    assert cut.manifest["stop_strings"] == ["never!", stop]
    assert "stop_strings" not in whole.manifest


def test_a_stop_string_begins_after_the_prompt(pipe):
    settings = {"prompt": PROMPT, "max_tokens": 6, "steps": 2}
    (whole,) = pipe.generate(**settings)
    across = PROMPT[-1] + whole.filled[0][0]
    assert across in whole.text and across not in whole.filled[0]
    assert pipe.generate(stop=[PROMPT, across], **settings)[0].text == whole.text


@pytest.mark.parametrize("seed", range(6))
def test_no_block_is_sampled_after_a_stop_string(pipe, seed):
    settings = {"prompt": PROMPT, "max_tokens": 24, "block_length": 3, "steps": 2, "seed": seed}
    (whole,) = pipe.generate(**settings)
    generated = whole.text.removeprefix(PROMPT)
    for place in (1, 4, 6):
        stop = [generated[place : place + 3]]
        (cut,) = pipe.generate(stop=stop, **settings)
        end = generated.index(stop[0])
        assert cut.text == PROMPT + generated[:end]
        assert cut.forward_passes < whole.forward_passes
        assert len(cut.trace.tokens) < len(whole.trace.tokens)
        pieces = list(pipe.stream(stop=stop, **settings).pieces())
        assert "".join(pieces) == cut.text and all(pieces)


@pytest.mark.parametrize("stop", ["abc", [""], ["a", 3], 5])
def test_stop_strings_that_are_none(pipe, stop):
    for call in (pipe.generate, pipe.stream):
        with pytest.raises(ConfigError, match="stop must be a list of texts"):
            call(stop=stop, steps=1)


def test_a_suffix_is_the_end(pipe):
    with pytest.raises(ConfigError, match="stop must be empty with a suffix"):
        pipe.generate(stop=["a"], suffix="of")


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [[], ["--block-length", "4"]])
def test_the_command_line_stops(folder, pipe, capsys, blocks):
    words = ["sample", str(folder), "--prompt", PROMPT, "--max-tokens", "20", "--steps", "2"]
    main([*words, *blocks, "--device", "cpu"])
    whole = capsys.readouterr().out
    stop = whole[len(PROMPT) + 5 :][:2]
    main([*words, *blocks, "--device", "cpu", "--stop", "never!", stop])
    end = whole.index(stop, len(PROMPT))
    assert capsys.readouterr().out == whole[:end].removesuffix("\n") + "\n"
