"""Text in order while it is sampled, and a pipeline that is used from several threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.small_model import TEXT, write_model

import gidd
from gidd.cli import main
from gidd.errors import ConfigError, DataError
from gidd.pipeline import Pipeline


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def pipe(folder) -> Pipeline:
    return gidd.from_pretrained(folder, device="cpu")


OPTIONS = {"length": 24, "block_length": 7, "steps": 3}


@pytest.mark.parametrize("seed", range(4))
def test_the_pieces_are_the_generated_text(pipe, seed):
    (whole,) = pipe.generate(prompt="Peace", seed=seed, confidence=True, **OPTIONS)
    pieces = list(pipe.stream(prompt="Peace", seed=seed, **OPTIONS).pieces())
    assert "".join(pieces) == whole.text and whole.text.startswith("Peace")
    assert all(pieces) and len(pieces) in (3, 4)
    assert whole.manifest["block_length"] == 7
    assert len(whole.confidence) == len(whole.tokens)


@pytest.mark.slow
def test_samples_in_blocks_are_the_same_alone_and_together(pipe):
    together = pipe.generate(n=4, **OPTIONS)
    (alone,) = pipe.generate(start_index=2, **OPTIONS)
    assert together[2].text == alone.text and together[2].forward_passes == alone.forward_passes
    assert together[0].text != together[1].text


@pytest.mark.parametrize("seed", range(4))
def test_states_are_the_text_after_every_step(pipe, seed):
    """Until a block is finished any of its tokens may change; what is new stays."""
    (whole,) = pipe.generate("Peace", seed=seed, **OPTIONS)
    states = list(pipe.stream("Peace", seed=seed, **OPTIONS))
    assert "".join(state.new for state in states) == states[-1].text == whole.text
    steps = [state for state in states if not state.new]
    assert [state.steps_done for state in steps] == list(range(1, len(steps) + 1))
    assert len(steps) <= steps[0].num_steps == 12 and "[MASK]" in steps[0].text
    finished = "Peace"
    for state in states:
        finished = state.text if state.new else finished
        assert state.text.startswith(finished.rstrip("\N{REPLACEMENT CHARACTER}"))


@pytest.mark.parametrize("take", [iter, lambda stream: stream.pieces()])
def test_a_stream_can_be_left(pipe, take):
    stream = take(pipe.stream(length=24, block_length=4, steps=2))
    first = next(stream)
    stream.close()
    assert first and next(stream, None) is None
    assert not pipe.session.pending


def test_an_error_of_a_step_is_raised_by_the_stream(pipe):
    def fail(rows, positions, request):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        list(pipe.stream("Peace", processors=[fail], **OPTIONS))


def test_an_invalid_stream_is_refused_before_its_first_piece(pipe):
    with pytest.raises(DataError, match="room for at least one token"):
        pipe.stream(prompt=TEXT, length=3)
    with pytest.raises(ConfigError, match="block_length must be an integer of at least 1"):
        pipe.stream(block_length=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda pipe: pipe.generate(suffix="of", **OPTIONS), "block_length must be None with a"),
        (lambda pipe: pipe.infill("of [MASK:3]", block_length=2), "None with a template"),
        (lambda pipe: pipe.generate(record_frames=True, **OPTIONS), "record_frames must be F"),
    ],
)
def test_blocks_cannot_see_what_follows(pipe, call, message):
    with pytest.raises(ConfigError, match=message):
        call(pipe)


@pytest.mark.slow
def test_the_command_line_streams(folder, pipe, capsys):
    words = ["--prompt", "Peace", "--length", "24", "--block-length", "7", "--steps", "3"]
    main(["sample", str(folder), *words, "--device", "cpu"])
    (whole,) = pipe.generate(prompt="Peace", **OPTIONS)
    assert capsys.readouterr().out == whole.text + "\n"
    for extra in (["--suffix", "of"], ["--html", "a.html"]):
        with pytest.raises(SystemExit):
            main(["sample", str(folder), *words, *extra])
        assert "block-length" in capsys.readouterr().err


@pytest.mark.slow
def test_a_pipeline_may_be_called_from_several_threads(pipe):
    def work(index: int):
        if index % 3 == 0:
            return pipe.correct(TEXT).text
        if index % 3 == 1:
            return pipe.self_correct(TEXT, forward_passes=3).text
        return [sample.text for sample in pipe.generate(n=2, length=12, steps=3, seed=index)]

    expected = [work(index) for index in range(6)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(6))) == expected
