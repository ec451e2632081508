"""Calls that somebody who knows transformers and diffusers guesses, and what old calls are told."""

import pytest
import torch
from support.small_model import write_model

import gidd
from gidd.errors import ConfigError

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')

FEW = {"max_tokens": 4, "steps": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def pipe(folder) -> gidd.Pipeline:
    return gidd.from_pretrained(folder)


def texts(generations) -> list[str]:
    return [generation.text for generation in generations]


CALLS = {
    "call": lambda pipe: texts(pipe("Peace", **FEW)),
    "no prompt": lambda pipe: texts(pipe(length=6, steps=2)),
    "positional": lambda pipe: texts(pipe.generate("Peace", **FEW)),
    "keyword": lambda pipe: texts(pipe.generate(prompt="Peace", **FEW)),
    "several samples": lambda pipe: texts(pipe.generate("Peace", n=2, seed=3, **FEW)),
    "several prompts": lambda pipe: [texts(one) for one in pipe(["Peace", "all"], **FEW)],
    "options": lambda pipe: texts(pipe("Peace", temperature=0.7, top_k=5, top_p=0.9, **FEW)),
    "stop": lambda pipe: texts(pipe("Peace", stop=["."], **FEW)),
    "stream": lambda pipe: list(pipe.stream("Peace", **FEW)),
    "infill": lambda pipe: texts(pipe.infill("Peace[MASK:2] all", n=2, steps=2)),
    "chat": lambda pipe: pipe.chat([{"role": "user", "content": "Peace?"}], **FEW).text,
    "score": lambda pipe: pipe.score("Peace", nodes=2, repeats=2).nelbo,
    "score texts": lambda pipe: len(pipe.score(["Peace", "all"], nodes=2, repeats=2)),
    "correct": lambda pipe: pipe.correct("Peace and all").text,
    "self-correct": lambda pipe: pipe.self_correct(pipe("Peace", **FEW)[0], forward_passes=2).text,
    "encode": lambda pipe: pipe.tokenizer.decode(pipe.encode("Peace")),
    "to": lambda pipe: texts(pipe.to("cpu").generate("Peace", **FEW)),
    "to a torch device": lambda pipe: texts(pipe.to(torch.device("cpu"))("Peace", **FEW)),
}


@pytest.mark.parametrize("call", CALLS)
def test_runs_as_guessed(pipe, call):
    assert CALLS[call](pipe)


def test_several_prompts_are_sampled_as_each_alone(pipe):
    prompts = ["Peace", "all", "Peace and"]
    together = pipe.generate(prompts, n=2, seed=5, **FEW)
    assert [texts(one) for one in together] == [
        texts(pipe.generate(prompt, n=2, seed=5, **FEW)) for prompt in prompts
    ]
    assert pipe.generate([]) == []


def test_move_changes_the_pipeline_itself(folder):
    pipe = gidd.from_pretrained(folder)
    before, session = texts(pipe("Peace", **FEW)), pipe.session
    assert pipe.to("cpu") is pipe and pipe.session is not session
    assert texts(pipe("Peace", **FEW)) == before
    with pytest.raises(ConfigError, match="device must be .*got tpu"):
        pipe.to("tpu")
    assert texts(pipe("Peace", **FEW)) == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda pipe: pipe.generate(4), r"got 4\. Write generate\(n=4\)"),
        (lambda pipe: pipe.generate(4, prompt="Peace"), r"Write generate\(\.\.\., n=4\)"),
        (lambda pipe: pipe(4), r"Write generate\(n=4\)"),
        (lambda pipe: pipe.infill("a[MASK]", 3), r"Write infill\(\.\.\., n=3\)"),
        (lambda pipe: pipe.generate("a", num_samples=3), "'num_samples'. It is called n here"),
        (lambda pipe: pipe("a", max_new_tokens=3), "'max_new_tokens'. It is called max_tokens"),
        (lambda pipe: pipe("a", num_inference_steps=3), "It is called steps here"),
        (lambda pipe: pipe.infill("a[MASK]", num_return_sequences=3), "It is called n here"),
        (lambda pipe: pipe({"prompt": "a"}), "prompt must be a string or a list of strings"),
        (lambda pipe: pipe(["a", 3]), "the prompt must be a string, got 3"),
        (lambda pipe: pipe.infill(["a[MASK]"]), "a template must be a string"),
    ],
)
def test_other_calls_say_what_to_write(pipe, call, message):
    with pytest.raises(ConfigError, match=message):
        call(pipe)
