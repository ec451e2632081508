"""Recovery of known errors: counts by hand, an exact denoiser, and the command."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from support.sampling_worlds import exact
from support.small_model import CONTEXT, TEXT, write_model

import gidd
from gidd.cli.eval.lists import split_commas
from gidd.cli.eval.recovery import main
from gidd.common.ratios import ratio_of_sums
from gidd.data.tokenizers import character_level
from gidd.diffusion.schedules import HybridSchedule
from gidd.errors import ConfigError
from gidd.evaluation.correction.correction_settings import RecoveryOptions
from gidd.evaluation.correction.corruption import CorruptedText, Corruption
from gidd.evaluation.correction.recovery import (
    Corrected,
    Excerpt,
    UnitCounts,
    correct_texts,
    recovery,
    recovery_rates,
    take_excerpts,
)
from gidd.evaluation.texts import Document
from gidd.pipeline import CorrectionOptions
from gidd.pipeline.text import TokenTexts
from gidd.sampling import Engine
from gidd.sources import MarkovSource


def test_units_are_counted_as_defined():
    # right and kept, right and damaged, wrong and kept, wrong and restored, wrong and other
    clean, given, corrected = "abcde", "abCDE", "axCdX"
    assert UnitCounts.of(clean, given, corrected) == UnitCounts(
        wrong=3, found=2, restored=1, right=2, damaged=1, wrong_after=3
    )
    assert UnitCounts.of("ab", "ab", "ab") == UnitCounts(0, 0, 0, 2, 0, 0)


def test_rates_of_three_sentences_by_hand():
    """Word units of two documents; the corrected sentences are those of a stub."""
    texts = TokenTexts(character_level("acehmstx "))
    encode = texts.tokenizer.encode
    word_of = (0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2)
    clean = ("the", " cat", " sat")
    given = [
        CorruptedText(tuple(encode(t)), clean, word_of) for t in ("thx cat sat", "the cxt sxt")
    ]
    third = CorruptedText(tuple(encode("mat")), ("mat",), (0, 0, 0))
    corrected = [Corrected(tuple(encode(t)), 3) for t in ("the cat mat", "the cat smt", "mat")]
    excerpts = [Excerpt(0, ()), Excerpt(0, ()), Excerpt(1, ())]
    # document 0: 3 wrong (3 found, 2 restored), 3 right (1 damaged); document 1: 1 right
    rates = recovery_rates(texts, excerpts, [*given, third], corrected)
    assert rates["found"].value == 1
    assert rates["restored"].value == pytest.approx(2 / 3)
    assert rates["damaged"].value == pytest.approx(1 / 4)
    assert rates["wrong_before"].value == pytest.approx(3 / 7)
    assert rates["wrong_after"].value == pytest.approx(2 / 7)
    assert rates["nfe"].value == 3
    # residuals of damaged: 1 - 3/4 and 0 - 1/4; n / (n - 1) = 2
    assert rates["damaged"].standard_error == pytest.approx(math.sqrt(2 * (1 / 16 + 1 / 16)) / 4)


def test_standard_error_of_a_ratio_of_equal_denominators_is_that_of_the_mean():
    values = [0.0, 1.0, 3.0]
    found = ratio_of_sums(values, [1, 1, 1])
    assert found.value == pytest.approx(4 / 3)
    assert found.standard_error == pytest.approx(torch.tensor(values).std().item() / math.sqrt(3))
    assert ratio_of_sums([1], [2]).standard_error is None
    assert math.isnan(ratio_of_sums([0, 0], [0, 0]).value)


def test_an_exact_denoiser_restores_nearly_all_isolated_errors():
    """The source repeats "abcdefgh" with rare jumps, so neighbours determine each token."""
    transition = torch.full((9, 9), 0.002, dtype=torch.float64)
    for i in range(8):
        transition[i, (i + 1) % 8] = 1 - 8 * 0.002
    transition[8] = 1 / 9
    source = MarkovSource(torch.full((9,), 1 / 9, dtype=torch.float64), transition)
    texts = TokenTexts(character_level("abcdefgh"))
    schedule = HybridSchedule(texts.tokenizer.vocab, p_uniform=0.2)
    engine = Engine(exact(source, schedule), schedule, rows_per_call=8)
    stub = SimpleNamespace(engine=engine, token_texts=texts, context=40)
    clean = [[(i + j) % 8 for j in range(40)] for i in range(8)]
    change = Corruption("tokens", 0.05, texts, 40, seed=0)
    given = [change(tokens) for tokens in clean]
    excerpts = [Excerpt(i, tuple(tokens)) for i, tokens in enumerate(clean)]

    def rates(**options):
        corrected = correct_texts(stub, given, CorrectionOptions(**options), seed=0)
        return recovery_rates(texts, excerpts, given, corrected)

    found, off = rates(error_rate=0.05), rates(calls=0)
    assert found["wrong_before"].value > 0.02
    assert found["restored"].value > 0.9
    assert found["damaged"].value < 0.005
    assert found["wrong_after"].value < 0.1 * off["wrong_after"].value
    assert off["found"] == off["restored"] == off["damaged"] == (0.0, 0.0, 8)
    assert off["wrong_after"] == off["wrong_before"] == found["wrong_before"]


def test_a_text_is_corrected_as_the_pipeline_does_it(pipe):
    tokens = tuple(pipe.tokenizer.encode(TEXT))[:CONTEXT]
    text = pipe.tokenizer.decode(tokens)
    assert tuple(pipe.tokenizer.encode(text)) == tokens
    options = CorrectionOptions(calls=6, error_rate=None)
    (found,) = correct_texts(pipe, [CorruptedText(tokens, tokens)], options, seed=3)
    expected = pipe.correct(text, seed=3, options=options)
    assert (found.tokens, found.calls) == (expected.tokens, expected.calls)
    assert found.tokens != tokens


def test_excerpts_are_taken_in_turn(pipe):
    texts = [Document("a", TEXT, tuple(range(30, 41))), Document("b", TEXT, (50, 51))]
    found = list(take_excerpts(pipe, texts, 4, 10))
    assert found == [
        Excerpt(0, (30, 31, 32, 33)),
        Excerpt(1, (50, 51)),
        Excerpt(0, (34, 35, 36, 37)),
    ]
    assert list(take_excerpts(pipe, texts, 4, 2)) == found[:2]


def test_rows_without_correction_show_the_errors_that_were_added(pipe, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name + TEXT)
    options = RecoveryOptions(
        corruption=("tokens", "letters"),
        rate=(0.2,),
        error_rate=("none",),
        correction=CorrectionOptions(calls=2),
        length=16,
        num_texts=4,
    )
    calls = []
    result = recovery(pipe, [str(tmp_path)], options, lambda *counts: calls.append(counts))
    assert calls[-1] == (16, 16)
    assert [(row["corruption"], row["setting"]) for row in result.rows] == [
        ("tokens", "off"),
        ("tokens", "none"),
        ("letters", "off"),
        ("letters", "none"),
    ]
    for row in result.rows[::2]:
        assert row["found"] == row["restored"] == row["damaged"] == row["nfe"] == 0
        assert row["wrong_after"] == row["wrong_before"] > 0
    assert result.rows[1]["nfe"] == 2
    assert result.measurements["tokens 0.2, error_rate none: nfe"].value == 2
    assert result.manifest["num_documents"] == 2
    assert result.manifest["model"]["sha256"]
    # the errors of a text depend on the text, not on its place
    files = [str(tmp_path / name) for name in ("b.txt", "a.txt")]
    again = recovery(pipe, files, options)
    assert again.rows[0]["wrong_before"] == result.rows[0]["wrong_before"]


def test_models_of_masking_alone_and_invalid_options_are_refused(tmp_path, pipe):
    masked = gidd.from_pretrained(write_model(tmp_path, p_uniform=0), device="cpu")
    with pytest.raises(ConfigError, match="masking alone"):
        recovery(masked, ["sotu"])
    for change, field in (
        ({"rate": ()}, "rate"),
        ({"length": CONTEXT + 1}, "length"),
        ({"error_rate": (1.0,)}, "error_rate"),
        ({"rate": (0.1, 0.1)}, "rate"),
        ({"correction": CorrectionOptions(error_rate=0.1)}, "correction.error_rate"),
        ({"correction": CorrectionOptions(calls=0)}, "correction.calls"),
    ):
        with pytest.raises(ConfigError, match=field):
            recovery(pipe, ["sotu"], RecoveryOptions(**change))


def test_the_command_prints_a_table_and_saves_the_result(model_folder, tmp_path, capsys):
    (tmp_path / "a.txt").write_text(TEXT)
    words = [str(model_folder), str(tmp_path / "a.txt"), "--rate", "0.1,0.3", "--error-rate=0.05"]
    main([*words, "--num-texts", "1", "--correction.calls", "2", "--out", str(tmp_path / "r.json")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["tokens", "0.1", "off"],
        ["tokens", "0.1", "0.05"],
        ["tokens", "0.3", "off"],
        ["tokens", "0.3", "0.05"],
    ]
    saved = json.loads((tmp_path / "r.json").read_text())
    assert saved["kind"] == "recovery"
    assert len(saved["rows"]) == 4


def test_the_command_refuses_mistakes_before_it_loads_a_model(tmp_path):
    with pytest.raises(ConfigError, match="--rate"):
        main(["missing", "sotu", "--rate", "2"])


def test_lists_are_split_at_commas_and_other_arguments_are_not():
    flags = ("--rate",)
    assert split_commas(["a,b", "--rate", "1,2", "3", "--x", "c,d"], flags) == [
        *("a,b", "--rate", "1", "2", "3", "--x", "c,d")
    ]
    assert split_commas(["--rate=1,2", "--x=1,2"], flags) == ["--rate", "1", "2", "--x=1,2"]
