"""The model class of lm-evaluation-harness: requests, windows, its commands."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.small_model import CONTEXT, TEXT

from gidd.diffusion.likelihood import ScoredText, estimate_nelbo
from gidd.errors import ConfigError, DataError
from gidd.evaluation.harness import lm
from gidd.evaluation.harness.choices import (
    conditional_parts,
    encode_continuation,
    joint_parts,
    stable_index,
)
from gidd.evaluation.harness.lm import GiddLM
from gidd.pipeline import Pipeline
from gidd.pipeline.score import scoring_windows

TASKS = Path(__file__).parent / "tasks"
pytestmark = pytest.mark.usefixtures("datasets_cache")


def _request(*arguments: Any, doc_id: int | None = 0, idx: int = 0) -> Any:
    return SimpleNamespace(args=arguments, task_name="task", doc_id=doc_id, idx=idx)


def _questions() -> list[Any]:
    """Three questions whose choices have different lengths; one has equal choices."""
    texts = ["I embrace", " with great", " the opportunity which now", " of", " you on", " of"]
    return [
        _request("the public" + " affairs" * doc, texts[(doc + idx) % 6], doc_id=doc, idx=idx)
        for doc in range(3)
        for idx in range(4)
    ]


# tokens


def test_a_continuation_is_what_follows_the_tokens_of_the_context(pipe: Pipeline) -> None:
    encode = pipe.decoder.encode
    found = encode_continuation(pipe.decoder, "the public ", "affairs")
    assert list(found.tokens) == encode("the public affairs", "")
    assert found.start == len(encode("the public", ""))  # the space moves to the continuation
    assert encode_continuation(pipe.decoder, "", "affairs").start == 0
    assert encode_continuation(pipe.decoder, " ", "affairs").start == 0


def test_a_continuation_has_a_token_even_if_it_is_merged_with_the_context(pipe: Pipeline) -> None:
    word = next(
        word
        for word in TEXT.split()
        for cut in [len(word) - 1]
        if cut > 0 and len(pipe.tokenizer.encode(word[:cut])) >= len(pipe.tokenizer.encode(word))
    )
    found = encode_continuation(pipe.decoder, word[:-1], word[-1])
    assert found.start == len(found.tokens) - 1
    with pytest.raises(DataError, match="''"):
        encode_continuation(pipe.decoder, "the", "")


def test_windows_score_each_token_once() -> None:
    def found(length: int, start: int, size: int) -> list[tuple[int, int, int]]:
        windows = scoring_windows(length, size, size - size // 2, first=start, fill=True)
        return [(w.start, w.start + w.num_given, w.stop) for w in windows]

    # fits: the last tokens, as in the paper
    assert found(10, 7, 8) == [(2, 7, 10)]
    assert found(8, 0, 8) == [(0, 0, 8)]
    # does not fit: each window is given half a context before it
    assert found(20, 0, 8) == [(0, 0, 8), (4, 8, 12), (8, 12, 16), (12, 16, 20)]
    assert found(20, 9, 8) == [(5, 9, 13), (9, 13, 17), (12, 17, 20)]
    assert found(3, 0, 1) == [(0, 0, 1), (1, 1, 2), (2, 2, 3)]


@pytest.mark.parametrize("start", [0, 3, 40])
@pytest.mark.parametrize("make", [conditional_parts, joint_parts])
def test_truncation_never_drops_tokens_of_the_continuation(make: Any, start: int) -> None:
    for length in range(start + 1, start + 60, 7):
        parts = make(list(range(length)), start, 16, ["question"])
        scored = [
            token
            for part in parts
            for i, token in enumerate(part.tokens.tolist())
            if part.given is None or not part.given[i]
        ]
        assert [token for token in scored if token >= start] == list(range(start, length))
        assert all(len(part.tokens) <= 16 for part in parts)


def test_the_rule_of_the_paper_scores_the_last_tokens_of_context_and_continuation() -> None:
    (part,) = joint_parts(list(range(12)), 9, 8, ["question"])
    assert part.given is None
    assert part.tokens.tolist() == list(range(4, 12))
    (part,) = conditional_parts(list(range(12)), 9, 8, ["question"])
    assert part.tokens.tolist() == list(range(4, 12))
    assert part.given is not None
    assert part.given.tolist() == [True] * 5 + [False] * 3


def test_the_index_of_random_numbers_does_not_depend_on_order() -> None:
    assert stable_index(["a", "b"]) == stable_index(["b", "a", "a"])
    assert len({stable_index(["a", "b"]), stable_index(["ab"]), stable_index(["ab"], 1)}) == 3
    assert 0 <= stable_index(["a"]) < 2**62


# log-likelihoods


def test_a_log_likelihood_is_minus_the_nelbo_of_the_continuation(pipe: Pipeline) -> None:
    model = GiddLM(pipe, nodes=3, repeats=2)
    ((value, _),) = model.loglikelihood([_request("I embrace", " with great")])
    tokens, start = encode_continuation(pipe.decoder, "I embrace", " with great")
    text = ScoredText(
        torch.tensor(tokens), stable_index(["I embrace"]), torch.arange(len(tokens)) < start
    )
    expected = estimate_nelbo(pipe.nelbo_estimator(nodes=3), [text], repeats=2)
    assert value == pytest.approx(-expected.total, abs=1e-4)


def test_the_rule_of_the_paper_uses_its_grid(pipe: Pipeline) -> None:
    model = GiddLM(pipe, rule="paper", nodes=5)
    ((value, _),) = model.loglikelihood([_request("I embrace", " with great")])
    tokens = torch.tensor(encode_continuation(pipe.decoder, "I embrace", " with great").tokens)
    estimator = pipe.nelbo_estimator(grid="paper", nodes=5)
    expected = estimator.draw([ScoredText(tokens, stable_index(["I embrace"]))], 0)
    assert value == pytest.approx(-float(expected.sum()), abs=1e-4)
    assert GiddLM(pipe, rule="paper").estimator.nodes == 128


@pytest.mark.slow
def test_order_and_batch_size_do_not_change_scores(pipe: Pipeline) -> None:
    requests = _questions()
    model = GiddLM(pipe, nodes=2, repeats=8, confidence=0.7)
    expected = model.loglikelihood(requests)
    assert len({scores.repeats for scores in model.scores.values()}) > 1
    order = list(range(len(requests)))
    random.Random(0).shuffle(order)
    for batch_size in (1, 7, "auto"):
        other = GiddLM(pipe, nodes=2, repeats=8, confidence=0.7, batch_size=batch_size)
        found = other.loglikelihood([requests[i] for i in order])
        assert [v for v, _ in found] == pytest.approx([expected[i][0] for i in order], abs=1e-4)


@pytest.mark.slow
def test_equal_requests_are_computed_once(pipe: Pipeline) -> None:
    once, twice = GiddLM(pipe, nodes=2, repeats=2), GiddLM(pipe, nodes=2, repeats=2)
    requests = _questions()
    expected = once.loglikelihood(requests)
    assert twice.loglikelihood([*requests, *requests]) == [*expected, *expected]
    assert twice.forward_passes == once.forward_passes


def test_a_request_longer_than_the_context_does_not_get_a_better_score(pipe: Pipeline) -> None:
    short, long = " of you" * 3, " of you" * 40
    model = GiddLM(pipe, nodes=2, repeats=4, early_stop=False)
    found = model.loglikelihood([_request("I", short), _request("I", long, idx=1)])
    assert len(pipe.tokenizer.encode(long)) > 2 * CONTEXT
    assert found[1][0] < found[0][0]
    assert model.truncated == 1
    # the sum over all its tokens, at about the same cost per token
    per_token = [
        value / len(pipe.tokenizer.encode(t))
        for (value, _), t in zip(found, [short, long], strict=True)
    ]
    assert per_token[1] == pytest.approx(per_token[0], rel=0.5)


def test_is_greedy_is_whether_the_tokens_are_the_most_likely_ones(pipe: Pipeline) -> None:
    model = GiddLM(pipe, nodes=1, repeats=2)
    context = pipe.tokenizer.encode("the public")
    z = torch.tensor([[*context, pipe.schedule.vocab.mask_id]])
    with torch.no_grad():
        logits = pipe.denoiser(z, torch.ones(1))
    token = int(logits[0, -1].argmax())
    text = pipe.tokenizer.decode([token])
    other = " of" if text != " of" else " you"
    assert pipe.tokenizer.encode("the public" + text) == [*context, token]
    requests = [_request("the public", text), _request("the public", other, doc_id=1)]
    assert [greedy for _, greedy in model.loglikelihood(requests)] == [True, False]


def test_rolling_log_likelihoods_add_up_windows(pipe: Pipeline) -> None:
    model = GiddLM(pipe, nodes=2, repeats=2)
    text = "of you " * 30
    requests = [_request(text), _request("", doc_id=1), _request("affairs", doc_id=2)]
    found = model.loglikelihood_rolling(requests)
    parts = conditional_parts(pipe.tokenizer.encode(text), 0, CONTEXT, [text])
    assert len(parts) > 2
    expected = estimate_nelbo(pipe.nelbo_estimator(nodes=2), parts, repeats=2)
    assert found[0] == pytest.approx(-expected.total, rel=1e-5)
    assert found[1] == 0
    assert model.loglikelihood_rolling(requests[::-1]) == pytest.approx(found[::-1], rel=1e-5)


def test_generation_fills_blanks_and_ends_at_stop_strings(pipe: Pipeline) -> None:
    model = GiddLM(pipe)
    settings: dict[str, Any] = {"max_gen_toks": 5, "do_sample": True, "temperature": 1.0}
    requests = [_request(context, settings) for context in ("the public", "of you " * 40)]
    found = model.generate_until(requests)
    assert model.truncated == 1
    assert model.generate_until(requests[::-1]) == found[::-1]
    assert all(0 < len(pipe.tokenizer.encode(text)) <= 10 for text in found)
    until = found[0][2:4]
    (cut,) = model.generate_until([_request("the public", settings | {"until": [until]})])
    assert cut == found[0][: found[0].index(until)]
    (same,) = model.generate_until([_request("the public", settings | {"until": until})])
    (whole,) = model.generate_until([_request("the public", settings | {"until": [""]})])
    assert (same, whole) == (cut, found[0])


def test_arguments_are_checked(pipe: Pipeline, model_folder: Path) -> None:
    with pytest.raises(ConfigError, match="trust_remote_code"):
        GiddLM(pipe, trust_remote_code=True)
    with pytest.raises(ConfigError, match="rule"):
        GiddLM(pipe, rule="best")
    with pytest.raises(ConfigError, match="max_length"):
        GiddLM(pipe, max_length=CONTEXT + 1)
    with pytest.raises(ConfigError, match="batch_size"):
        GiddLM(pipe, batch_size="large")
    # lm_eval passes its own defaults beside --model_args
    model = GiddLM.create_from_arg_string(
        f"pretrained={model_folder},device=cpu,max_length=16,early_stop=False,nodes=2",
        {"device": "cuda:0", "batch_size": 3, "max_batch_size": None},
    )
    assert (model.max_length, model.options.early_stop, model.options.nodes) == (16, False, 2)
    assert model.estimator.tokens_per_batch == 48


# lm_eval


@pytest.mark.slow
def test_lm_eval_itself_runs_the_model_on_a_local_task(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(TASKS)  # lm_eval reads data relative to the current folder
    import lm_eval
    from lm_eval.tasks import TaskManager

    found = lm_eval.simple_evaluate(
        model="gidd",
        model_args=f"pretrained={model_folder},device=cpu,nodes=2,repeats=2",
        tasks=[str(TASKS / "affairs.yaml")],
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=0,
    )
    assert 0 <= found["results"]["affairs_yaml"]["acc,none"] <= 1
    assert len(found["samples"]["affairs_yaml"]) == 3


def test_the_module_is_the_command_of_lm_eval(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: called.append("lm_eval"))
    lm.main()
    assert called == ["lm_eval"]


@pytest.mark.long
def test_the_command_of_lm_eval_finds_the_model(model_folder: Path, tmp_path: Path) -> None:
    """Its real command line; it indexes all tasks of lm_eval, which takes most of the time."""
    registration = Path(lm.__file__).with_name("lm_eval.yaml")
    command = ["--model", "gidd", "--model_args", f"pretrained={model_folder},nodes=2,repeats=2"]
    command += ["--include_path", ".", "--tasks", f"affairs_yaml,{registration}"]
    command += ["--batch_size", "auto", "--output_path", str(tmp_path / "out"), "--log_samples"]
    run = subprocess.run(
        [sys.executable, "-m", "lm_eval", *command],
        cwd=TASKS,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "affairs_yaml" in run.stdout
    (found,) = (tmp_path / "out").rglob("results_*.json")
    assert "acc,none" in json.loads(found.read_text())["results"]["affairs_yaml"]
