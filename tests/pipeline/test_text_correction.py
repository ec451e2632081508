"""Correction of given texts: the mechanics, with a model of characters with random weights."""

import pytest
from support.small_proofreader import LETTER, cut_into_small_parts, write_proofreader

import gidd
from gidd.assets import PACKAGED_MODELS, find_model
from gidd.errors import ConfigError, DataError
from gidd.pipeline import correct as correct_module
from gidd.proofreading.edits import apply_edits
from gidd.proofreading.parts import parts_of

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
    edits = [edit for part in parts for edit in corrector.correct_part(TEXT, part, 0.2).edits]
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


def test_packaged_models_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in PACKAGED_MODELS:
        assert (find_model(name) / "gidd.json").is_file()
        (tmp_path / name).mkdir()
        assert find_model(name) == name  # a folder of the user comes first
    assert find_model("models/nano") == "models/nano"
