"""Correction of given texts by the posterior of each token, with random weights."""

from dataclasses import replace

import pytest
from support.small_model import CONTEXT, TEXT, write_model

import gidd
from gidd.errors import ConfigError, DataError
from gidd.pipeline import apply_edits


@pytest.fixture(scope="module")
def pipe(tmp_path_factory):
    return gidd.from_pretrained(write_model(tmp_path_factory.mktemp("model")), device="cpu")


def corrected(pipe, text=TEXT, **options):
    return pipe.correct(text, **({"error_rate": 0.4} | options))


def test_edits_give_the_text_and_nothing_else_changes(pipe):
    result = corrected(pipe)
    assert result.original == TEXT
    assert result.text == apply_edits(TEXT, result.edits)
    assert result.changes
    stops = [0, *(edit.stop for edit in result.edits)]
    assert all(a <= edit.start for a, edit in zip(stops, result.edits, strict=False))
    for edit in result.edits:
        assert TEXT[edit.start : edit.stop] == edit.old
        assert "\n" not in edit.old + edit.new
        assert (
            edit.confidence == max(a.probability for a in edit.alternatives if edit.is_change)
            if edit.is_change
            else True
        )
    assert set(result.changes) | set(result.suggestions) == set(result.edits)
    assert len(result.text.split("\n")) == len(TEXT.split("\n"))
    assert result.manifest["forward_passes"] == result.forward_passes


def test_a_minimum_confidence_leaves_the_rest_as_suggestions(pipe):
    every, none = corrected(pipe), corrected(pipe, min_confidence=1.0)
    assert none.text == TEXT
    assert {edit.start for edit in every.changes} <= {edit.start for edit in none.suggestions}
    some = corrected(pipe, min_confidence=0.5)
    assert all(edit.confidence >= 0.5 for edit in some.changes)


def test_protected_spans_do_not_change(pipe):
    start, stop = 20, 60
    result = corrected(pipe, protected=[(start, stop)])
    assert result.changes
    assert all(edit.stop <= start or edit.start >= stop for edit in result.edits)
    whole = corrected(pipe, protected=[(0, len(TEXT))])
    assert (whole.text, whole.edits, whole.forward_passes) == (TEXT, (), 0)


def test_a_long_text_is_corrected_in_windows(pipe):
    progress = []
    result = corrected(pipe, on_progress=lambda *count: progress.append(count))
    assert len(pipe.tokenizer.encode(TEXT)) > CONTEXT
    assert len(progress) == result.forward_passes > 1
    assert progress == sorted(progress)
    assert progress[-1] == (len(TEXT), len(TEXT))


@pytest.mark.slow
def test_the_error_rate_is_estimated(pipe):
    result = pipe.correct(TEXT)
    assert result.noise_level is not None
    assert result.noise_level.low <= result.error_rate <= result.noise_level.high
    assert corrected(pipe).noise_level is None


TEXTS = [TEXT, TEXT[:90], TEXT[30:], TEXT]


def results(corrections):
    """All of some corrections, except for the time that they took."""
    return [replace(found, manifest=found.manifest | {"seconds": 0}) for found in corrections]


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "options"), [(1, {"error_rate": 0.4}), (8, {})])
def test_several_texts_at_once_are_corrected_as_one_by_one(pipe, monkeypatch, rows, options):
    pipe = with_rows(pipe, rows)
    forward_passes = count_calls(pipe, monkeypatch)
    apart = [pipe.correct(text, **options) for text in TEXTS]
    calls_apart = len(forward_passes)
    forward_passes.clear()
    progress = []
    together = pipe.correct(TEXTS, on_progress=lambda *n: progress.append(n), **options)
    assert results(together) == results(apart)
    assert together[0].changes
    total = sum(map(len, TEXTS))
    assert progress == sorted(progress)
    assert progress[-1] == (total, total)
    assert {of for _, of in progress} == {total}
    assert (
        len(forward_passes) <= calls_apart
        if rows == 1
        else len(forward_passes) < 0.75 * calls_apart
    )


def test_texts_with_their_own_protected_spans(pipe):
    spans = [[(0, 10)], [], [(4, 10), (0, 3)], [(0, len(TEXT))]]
    together = pipe.correct(TEXTS, error_rate=0.4, protected=spans)
    apart = [corrected(pipe, t, protected=own) for t, own in zip(TEXTS, spans, strict=True)]
    assert results(together) == results(apart)
    assert together[3].forward_passes == 0
    assert pipe.correct([]) == []
    for wrong in ([[]], [(0, 10), [], [], []]):
        with pytest.raises(ConfigError, match="protected must have a list.*4 texts"):
            pipe.correct(TEXTS, protected=wrong)


def test_a_text_that_fails_raises_its_error(pipe, monkeypatch):
    forward_passes = count_calls(pipe, monkeypatch)
    with pytest.raises(DataError, match="must not be empty"):
        pipe.correct([TEXT, "", TEXT])
    with pytest.raises(ConfigError, match="protected span"):
        pipe.correct([TEXT, TEXT], protected=[[], [(0, 9999)]])
    assert forward_passes == []  # both are found before the first forward pass


@pytest.mark.slow
def test_scores_of_several_texts_are_those_of_each(pipe):
    together = pipe.score(TEXTS, nodes=1, repeats=2)
    for text, found in zip(TEXTS, together, strict=True):
        alone = pipe.score(text, nodes=1, repeats=2)
        assert (found.noise_level, found.confidence) == (alone.noise_level, alone.confidence)


def with_rows(pipe, rows):
    """The same model with another number of sequences in a forward pass."""
    return gidd.Pipeline(
        pipe.denoiser,
        pipe.schedule,
        pipe.tokenizer,
        context=pipe.context,
        batch_size=rows,
    )


def count_calls(pipe, monkeypatch) -> list:
    """Record the shape of every forward pass."""
    hidden, shapes = pipe.denoiser.hidden, []

    def counted(z, *arguments):
        shapes.append(tuple(z.shape))
        return hidden(z, *arguments)

    monkeypatch.setattr(pipe.denoiser, "hidden", counted)
    return shapes
