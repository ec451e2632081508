"""Self-correction of samples: every budget from one run, and measurements along the way."""

import json
import math
from dataclasses import replace

import pytest
from support.small_model import write_model

import gidd
from gidd.cli.eval.self_correction import main
from gidd.errors import ConfigError
from gidd.evaluation.graders import GradedText
from gidd.evaluation.metrics import sequence_entropy
from gidd.evaluation.options import CurveOptions
from gidd.evaluation.self_correction import (
    correct_samples,
    correction_curve,
    score_sequences,
)
from gidd.pipeline import SamplingOptions, SelfCorrectionOptions
from gidd.sampling import Request

SAMPLING = SamplingOptions(steps=4)
OPTIONS = CurveOptions(num_samples=5, length=12, temperatures=(0.0, 1.0), forward_passes=(9, 2))


class WordGrader:
    """Each character costs 0.1 nats; a text has one token fewer than characters."""

    def __init__(self):
        self.manifest = {"name": "characters"}

    def score(self, texts):
        return [GradedText(0.1 * len(text), max(0, len(text) - 1), False) for text in texts]


@pytest.fixture(scope="module")
def result(pipe):
    return correction_curve(pipe, OPTIONS, SAMPLING, WordGrader())


@pytest.mark.slow
@pytest.mark.parametrize("patience", [1, 32])
def test_a_budget_read_from_a_long_run_is_a_run_with_that_budget(pipe, patience):
    samples = pipe.generate(n=2, length=12, options=SAMPLING)
    states = [sample.trace.tokens for sample in samples]
    options = SelfCorrectionOptions(forward_passes=14, temperature=0.5, patience=patience)
    budgets = [2, 5, 14]
    found = correct_samples(pipe, states, options, budgets, seed=5, start_index=1)
    assert list(found) == budgets
    for budget in budgets:
        plan = replace(options, forward_passes=budget).plan()
        requests = [
            Request(
                tokens=state,
                plan=plan,
                seed=5,
                sample_index=i,
                protected=(False,) * 12,
            )
            for i, state in enumerate(states, start=1)
        ]
        expected = [(s.tokens, s.forward_passes) for s in pipe.session.sample(requests)]
        assert [tuple(state) for state in found[budget]] == expected


@pytest.mark.slow
def test_rows_with_zero_calls_are_the_samples_themselves(pipe, result):
    samples = pipe.generate(n=5, length=12, options=SAMPLING)
    entropies = [sequence_entropy(sample.tokens) for sample in samples]
    entropies = [value for value in entropies if not math.isnan(value)]
    texts = [sample.text for sample in samples]
    for row in result.rows:
        if row["forward_passes"] == 0:
            assert row["changed_tokens"] == row["num_changed"] == row["nfe"] == 0
            assert row["entropy"] == pytest.approx(sum(entropies) / len(entropies))
            nats = 0.1 * sum(len(text) for text in texts if len(text) > 1)
            count = sum(len(text) - 1 for text in texts if text)
            assert row["gen_ppl"] == pytest.approx(math.exp(nats / count))
    assert [(row["temperature"], row["forward_passes"]) for row in result.rows] == [
        *((0.0, forward_passes) for forward_passes in (0, 2, 9)),
        *((1.0, forward_passes) for forward_passes in (0, 2, 9)),
    ]


def test_changed_tokens_and_self_accuracy_grow_with_the_budget(result):
    for rows in (result.rows[:3], result.rows[3:]):
        changed = [row["num_changed"] for row in rows]
        assert changed == sorted(changed)
        assert 0 < changed[-1] <= 8  # at most one token per pass, the last one unscored
        assert [row["changed_tokens"] for row in rows] == pytest.approx([n / 12 for n in changed])
        assert rows[-1]["self_accuracy"] > rows[0]["self_accuracy"]
        assert all(row["num_samples"] == 5 for row in rows)


def test_numbers_and_manifest_describe_the_run(result):
    assert result.kind == "self_correction"
    assert result.measurements["before: num_changed"].value == 0
    row = result.rows[-1]
    assert result.measurements["temperature 1, 9 forward passes: gen_ppl"].value == row["gen_ppl"]
    manifest = result.manifest
    assert manifest["grader"] == {"name": "characters"}
    assert manifest["schedule"]["p_uniform"] == 0.2
    assert (manifest["length"], manifest["forward_passes"], manifest["seed"]) == (12, [2, 9], 0)
    assert manifest["sampling"][0]["steps"] == 4
    assert len(manifest["sampling"]) == 1
    assert manifest["correction"]["patience"] == 32


def test_text_after_its_end_is_not_measured(pipe):
    end = pipe.tokenizer.end_id
    sequences = [(40, 41, end, 42), (40, 41, 43, 42), (end, 40, 40, 40)]
    found = score_sequences(pipe, sequences, WordGrader())
    frame_accuracy = found[sequences[0]].self_accuracy
    assert frame_accuracy in (0.0, 0.5, 1.0)
    assert found[sequences[0]].entropy == pytest.approx(math.log(2))
    assert found[sequences[1]].entropy == pytest.approx(math.log(4))
    assert math.isnan(found[sequences[2]].self_accuracy)
    assert found[sequences[2]].graded == GradedText(0.0, 0, False)


def test_a_model_of_masking_alone_is_measured_with_a_note(tmp_path):
    masked = gidd.from_pretrained(write_model(tmp_path, p_uniform=0), device="cpu")
    small = CurveOptions(num_samples=1, length=8, temperatures=(0.1,), forward_passes=(2,))
    found = correction_curve(masked, small, SAMPLING)
    assert "masking alone" in found.manifest["notes"][-1]
    assert found.manifest["grader"] is None
    assert "gen_ppl" not in found.rows[0]


def test_options_that_the_curve_sets_itself_are_refused(pipe):
    for sampling in (
        SamplingOptions(self_correction=SelfCorrectionOptions(forward_passes=8)),
        SamplingOptions(self_correction=SelfCorrectionOptions(forward_passes=0, temperature=0.3)),
        SamplingOptions(steps=0),
    ):
        with pytest.raises(ConfigError, match="forward_passes|temperature|steps"):
            correction_curve(pipe, OPTIONS, sampling)
    with pytest.raises(ConfigError, match="forward_passes"):
        correction_curve(pipe, CurveOptions(forward_passes=(1,)))


@pytest.mark.slow
def test_the_command_prints_a_row_per_setting(model_folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")  # lines are longer: no number is cut
    words = [str(model_folder), "--num-samples", "2", "--length", "8", "--steps", "2", "--sampler"]
    words += ["confidence", "--temperatures", "0.1,0.5", "--forward-passes", "2"]
    main(words)
    lines = capsys.readouterr().out.splitlines()
    assert "…" not in "".join(lines)
    assert [line.split()[:2] for line in lines[1:]] == [
        ["0.1", "0"],
        ["0.1", "2"],
        ["0.5", "0"],
        ["0.5", "2"],
    ]
    main([*words, "--json"])
    assert json.loads(capsys.readouterr().out)["kind"] == "self_correction"
    with pytest.raises(ConfigError, match=r"--self-correction.forward-passes"):
        main([*words, "--self-correction.forward-passes", "4"])
