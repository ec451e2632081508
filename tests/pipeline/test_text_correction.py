"""Correction of given texts: the mechanics, with a model of characters with random weights."""

from dataclasses import replace
from functools import partial

import pytest
from support.small_proofreader import LETTER, cut_into_small_parts, write_proofreader

import gidd
from gidd.assets import PACKAGED_MODELS, find_model
from gidd.errors import ConfigError, DataError
from gidd.pipeline import correct as correct_module
from gidd.proofreading.edits import apply_edits
from gidd.proofreading.parts import parts_of
from gidd.sampling import Jobs, run_job

TEXT = LETTER[-120:]


@pytest.fixture(scope="module")
def pipe(tmp_path_factory):
    return gidd.from_pretrained(write_proofreader(tmp_path_factory.mktemp("proofreader")))


def corrected(pipe, text=TEXT, **options):
    return pipe.correct(text, **({"error_rate": 0.2} | options))


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
    assert result.manifest["method"] == "words"
    assert result.manifest["calls"] == result.calls


def test_a_minimum_confidence_leaves_the_rest_as_suggestions(pipe):
    every, none = corrected(pipe), corrected(pipe, min_confidence=1.0)
    assert none.text == TEXT
    assert {edit.start for edit in every.changes} <= {edit.start for edit in none.suggestions}
    some = corrected(pipe, min_confidence=0.5)
    assert all(edit.confidence >= 0.5 for edit in some.changes)


def test_protected_spans_do_not_change(pipe):
    start = TEXT.index("peopel")
    result = corrected(pipe, protected=[(start, start + 6)])
    assert all(edit.stop <= start or edit.start >= start + 6 for edit in result.edits)
    whole = corrected(pipe, protected=[(0, len(TEXT))])
    assert (whole.text, whole.edits, whole.calls) == (TEXT, (), 0)


def test_characters_outside_the_vocabulary_are_kept(pipe):
    text = "Thee peopel — naïve 東京\r\n\tof teh “union” 🙂 and the sattes."
    result = corrected(pipe, text)
    for character in "—ï東京\r\n\t“”🙂":
        assert result.text.count(character) == text.count(character)


def test_parts_are_corrected_by_themselves(pipe, monkeypatch):
    monkeypatch.setattr(correct_module, "parts_of", parts_of)
    cut_into_small_parts()
    corrector = pipe.corrector()
    parts = corrector.parts(TEXT)
    assert len(parts) > 1
    judged = [
        run_job(partial(corrector.correct_part, text=TEXT, part=part, error_rate=0.2))
        for part in parts
    ]
    edits = [edit for part in judged for edit in part.edits]
    progress = []
    result = corrected(pipe, on_progress=lambda *count: progress.append(count))
    assert result.edits == tuple(edits)
    assert progress == [(part.stop, len(TEXT)) for part in parts]


def test_the_error_rate_is_estimated(pipe):
    result = pipe.correct(TEXT)
    assert result.noise_level is not None
    assert result.noise_level.low <= result.error_rate <= result.noise_level.high
    assert corrected(pipe).noise_level is None


def test_a_channel_is_used(pipe):
    plain, keyboard = corrected(pipe), corrected(pipe, channel="keyboard")
    assert keyboard.manifest["channel"] == "keyboard"
    assert [e.alternatives for e in plain.edits] != [e.alternatives for e in keyboard.edits]


def test_without_words_each_token_is_judged(pipe, tmp_path):
    folder = write_proofreader(tmp_path)
    (folder / "words.txt").unlink()
    result = corrected(gidd.from_pretrained(folder))
    assert result.manifest["method"] == "tokens"
    assert len(result.text) == len(TEXT)
    assert all(len(edit.old) == len(edit.new) == 1 for edit in result.edits)


def test_a_saved_pipeline_has_its_words(pipe, tmp_path):
    pipe.save(tmp_path)
    again = gidd.from_pretrained(tmp_path)
    assert again.words.counts == pipe.words.counts
    assert corrected(again).text == corrected(pipe).text


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"text": ""}, DataError, "must not be empty"),
        ({"error_rate": 2}, ConfigError, "error_rate.*got 2"),
        ({"min_confidence": -1}, ConfigError, "min_confidence.*got -1"),
        ({"channel": "typewriter"}, ConfigError, "keyboard, ocr or a file"),
        ({"protected": [(0, 9999)]}, ConfigError, "protected"),
    ],
)
def test_wrong_arguments_are_refused(pipe, options, error, message):
    with pytest.raises(error, match=message):
        corrected(pipe, **options)


TEXTS = [
    TEXT,
    TEXT.replace("peopel", "people").replace("union", "unoin"),
    "the people of teh union, and the sattes.\n",
    TEXT,
]


def results(corrections):
    """All of some corrections, except for the time that they took."""
    return [replace(found, manifest=found.manifest | {"seconds": 0}) for found in corrections]


@pytest.mark.parametrize(
    ("rows", "options"), [(1, {"error_rate": 0.1, "channel": "keyboard"}), (8, {})]
)
def test_several_texts_at_once_are_corrected_as_one_by_one(pipe, monkeypatch, rows, options):
    pipe = with_rows(pipe, rows)
    calls = count_calls(pipe, monkeypatch)
    apart = [pipe.correct(text, **options) for text in TEXTS]
    calls_apart = len(calls)
    calls.clear()
    progress = []
    together = pipe.correct(TEXTS, on_progress=lambda *n: progress.append(n), **options)
    assert results(together) == results(apart)
    assert together[0].changes
    total = sum(map(len, TEXTS))
    assert progress == sorted(progress)
    assert progress[-1] == (total, total)
    assert {of for _, of in progress} == {total}
    assert len(calls) < (0.75 if rows == 8 else 0.95) * calls_apart


def test_texts_with_their_own_protected_spans(pipe):
    spans = [[(0, 10)], [], [(4, 10), (0, 3)], [(0, len(TEXT))]]
    together = pipe.correct(TEXTS, error_rate=0.2, protected=spans)
    apart = [corrected(pipe, t, protected=own) for t, own in zip(TEXTS, spans, strict=True)]
    assert results(together) == results(apart)
    assert together[3].calls == 0
    assert pipe.correct([]) == []
    for wrong in ([[]], [(0, 10), [], [], []]):
        with pytest.raises(ConfigError, match="protected must have a list.*4 texts"):
            pipe.correct(TEXTS, protected=wrong)


def test_a_text_that_fails_raises_its_error(pipe, monkeypatch):
    calls = count_calls(pipe, monkeypatch)
    with pytest.raises(DataError, match="must not be empty"):
        pipe.correct([TEXT, "", TEXT])
    with pytest.raises(ConfigError, match="protected span"):
        pipe.correct([TEXT, TEXT], protected=[[], [(0, 9999)]])
    assert calls == []  # both are found before the first forward pass


def test_a_correction_is_not_disturbed_by_one_that_fails(pipe):
    corrector = pipe.corrector()

    async def fail(jobs):
        await corrector.estimate(jobs, TEXT)
        raise ZeroDivisionError

    jobs = Jobs()
    part = corrector.parts(TEXT)[0]
    failing = jobs.start(fail(jobs))
    good = jobs.start(corrector.correct_part(jobs, TEXT, part, 0.2))
    empty = jobs.start(corrector.correct_part(jobs, "", part, 0.2))
    while jobs.pending:
        jobs.step()
    assert good.result() == run_job(
        partial(corrector.correct_part, text=TEXT, part=part, error_rate=0.2)
    )
    with pytest.raises(ZeroDivisionError):
        failing.result()
    with pytest.raises(DataError, match="must not be empty"):
        empty.result()


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
        words=pipe.words,
        rows_per_call=rows,
    )


def count_calls(pipe, monkeypatch) -> list:
    """Record the shape of every forward pass."""
    hidden, shapes = pipe.denoiser.hidden, []

    def counted(z, *arguments):
        shapes.append(tuple(z.shape))
        return hidden(z, *arguments)

    monkeypatch.setattr(pipe.denoiser, "hidden", counted)
    return shapes


def test_packaged_models_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in PACKAGED_MODELS:
        assert (find_model(name) / "gidd.json").is_file()
        (tmp_path / name).mkdir()
        assert find_model(name) == name  # a folder of the user comes first
    assert find_model("models/nano") == "models/nano"
