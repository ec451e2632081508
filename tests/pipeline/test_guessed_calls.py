"""Calls that somebody who knows transformers and diffusers guesses, and what old calls are told."""

import pytest
import torch
from support.hub_server import serve_hub
from support.small_model import write_model

import gidd
from gidd.errors import CheckpointError, ConfigError

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
    "stream": lambda pipe: [state.text for state in pipe.stream("Peace", **FEW)],
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


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [
        (torch.float32, "float32"),
        ("auto", "float32"),
        (torch.bfloat16, "bf16"),
        ("bfloat16", "bf16"),
    ],
)
def test_dtype_is_the_precision(folder, dtype, precision):
    assert gidd.from_pretrained(folder, dtype=dtype).precision == precision


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"dtype": torch.float16},
            "dtype must be torch.float32 or torch.bfloat16, got torch.float16",
        ),
        ({"dtype": "bf16", "precision": "bf16"}, "dtype must be left out with precision"),
        ({"revision": "main", "token": "x"}, "revision, token must be left out for a local model"),
    ],
)
def test_settings_without_effect_are_refused(folder, settings, message):
    with pytest.raises(ConfigError, match=message):
        gidd.from_pretrained(folder, **settings)


def test_a_model_of_the_hub_has_a_revision_and_a_cache(folder, tmp_path):
    with serve_hub(tmp_path / "unused") as hub:
        for file in folder.iterdir():
            hub.add("owner/model", file.name, file.read_bytes(), revision="v2")
        settings = {"revision": "v2", "cache_dir": tmp_path / "cache", "token": "hf_secret"}
        pipe = gidd.from_pretrained("owner/model", **settings)
        assert texts(pipe("Peace", **FEW)) == texts(gidd.from_pretrained(folder)("Peace", **FEW))
        with pytest.raises(CheckpointError, match="could not be downloaded"):
            gidd.from_pretrained("owner/model", revision="v3")
    assert list((tmp_path / "cache").rglob("model.safetensors"))
    assert not (tmp_path / "unused").exists()
    assert "hf_secret" not in str(pipe.describe())


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
        (lambda pipe: pipe.generate(4), r"by its name, n, got 4\. Write generate\(n=4\)"),
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
