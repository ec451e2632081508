"""`gidd eval ppl --executor ray`: the numbers of one process, up to rounding."""

import json
import os
import subprocess
import sys
from functools import partial

import pytest
from support.small_model import TEXT, write_model

import gidd
from gidd.cli import main
from gidd.common.actors import ActorOptions
from gidd.data.preparation import prepare
from gidd.data.tokenizers import Tokenizer
from gidd.errors import ConfigError
from gidd.evaluation import window_scores
from gidd.evaluation.options import PerplexityOptions
from gidd.evaluation.perplexity import evaluate_perplexity
from gidd.evaluation.window_scores import ModelSource, score_on_ray

OPTIONS = PerplexityOptions(nodes=2, length=16, stride=12)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def source(tmp_path) -> str:
    path = tmp_path / "texts.jsonl"
    texts = (TEXT, TEXT[:41], "Peace – and “plenty”")
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return str(path)


def backwards(worker, arguments, items, actors):
    """A loop in place of actors, which finishes the last item first."""
    score = worker(*arguments)
    for position in reversed(range(len(items))):
        yield position, json.loads(json.dumps(score(json.loads(json.dumps(items[position])))))


def test_answers_of_chats_are_those_of_one_process(model, tmp_path, monkeypatch):
    monkeypatch.setattr(window_scores, "map_on_ray", backwards)
    turns = [("user", "add 1 2"), ("assistant", "3"), ("user", "add 2 5"), ("assistant", "7")]
    chat = {"messages": [{"role": role, "content": text} for role, text in turns]}
    (tmp_path / "chats.jsonl").write_text("\n".join([json.dumps(chat)] * 3))
    data, tokenizer = tmp_path / "data", Tokenizer.load(model)
    prepare([tmp_path / "chats.jsonl"], tokenizer, data, format="chat", validation=1, quiet=True)
    pipe, options = gidd.from_pretrained(model, device="cpu"), PerplexityOptions(nodes=2)
    on_actors = partial(
        score_on_ray, ModelSource(model, "cpu"), options=options, actors=ActorOptions()
    )
    found = evaluate_perplexity(
        pipe, [str(data)], options, score=lambda texts, done: on_actors(texts=texts)
    )
    assert_close(found.to_dict(), evaluate_perplexity(pipe, [str(data)], options).to_dict())


def test_items_of_windows_give_the_numbers_of_one_process(model, source, monkeypatch):
    monkeypatch.setattr(window_scores, "map_on_ray", backwards)
    monkeypatch.setattr(window_scores, "_WINDOWS_PER_ITEM", 3)
    pipe, found = gidd.from_pretrained(model, device="cpu"), []
    result = evaluate_perplexity(
        pipe,
        [source],
        OPTIONS,
        score=lambda texts, done: score_on_ray(
            ModelSource(model, "cpu"), texts, OPTIONS, ActorOptions(), done
        ),
        on_forward_passes=lambda *counts: found.append(counts),
    )
    expected = evaluate_perplexity(pipe, [source], OPTIONS)
    assert_close(result.to_dict(), expected.to_dict())
    windows = expected.manifest["num_windows"]
    assert found[-1] == (windows, windows)
    assert len(found) == -(-windows // 3)
    with pytest.raises(ConfigError, match="max_se"):
        score_on_ray(ModelSource(model), [], PerplexityOptions(max_se=0.1), ActorOptions())


def test_the_manifest_is_that_of_the_actors(model, source, monkeypatch, capsys):
    """The driver loads the model on the CPU, in float32, whatever the actors compute with."""
    loaded = []

    def on_actor(worker, arguments, items, actors):
        (found, options) = arguments
        loaded.append(found)
        score = worker(found._replace(precision="bf16"), options)  # as if CUDA were the default
        yield from ((position, score(item)) for position, item in enumerate(items))

    monkeypatch.setattr(window_scores, "map_on_ray", on_actor)
    words = ["eval", "ppl", model, source, "--executor", "ray", "--nodes", "1", "--json"]
    main([*words, "--precision", "tf32"])  # which the driver has no device for
    assert loaded[0].precision == "tf32"
    assert json.loads(capsys.readouterr().out)["manifest"]["precision"] == "bf16"


def assert_close(found: dict, expected: dict) -> None:
    for name, number in expected["measurements"].items():
        for key, value in number.items():
            close = None if value is None else pytest.approx(value, rel=1e-5, abs=1e-7)
            assert found["measurements"][name][key] == close
    for row, other in zip(found["rows"], expected["rows"], strict=True):
        assert row["nelbo"] == pytest.approx(other["nelbo"], rel=1e-5)
        assert (row["id"], row["tokens"]) == (other["id"], other["tokens"])
    for result in (found, expected):
        del result["manifest"]["seconds"]
    assert found["manifest"] == expected["manifest"]


@pytest.mark.long
def test_actors_give_the_numbers_of_one_process(model, source):
    pytest.importorskip("ray", reason='needs `pip install "gidd[cluster]"`')
    words = [sys.executable, "-m", "gidd.cli", "eval", "ppl", model, source, "--json"]
    words += ["--nodes", "2", "--length", "16", "--stride", "12", "--device", "cpu"]
    words += ["--executor", "ray", "--ray.num-actors", "1", "--ray.num-cpus", "0.5"]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    expected = evaluate_perplexity(gidd.from_pretrained(model, device="cpu"), [source], OPTIONS)
    assert_close(json.loads(done.stdout), expected.to_dict())
