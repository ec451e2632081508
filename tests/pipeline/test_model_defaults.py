"""`sampling.json` and `examples.json`: what a model recommends, on every route."""

import json
from dataclasses import replace

import httpx
import pytest
from support.hub_server import serve_hub
from support.service import served
from support.small_model import write_model

import gidd
from gidd.cli import main
from gidd.errors import CheckpointError, ConfigError
from gidd.pipeline import CorrectionOptions, SamplingOptions, SelfCorrectionOptions
from gidd.pipeline.defaults import CORRECTION_FILE, EXAMPLES_FILE, SAMPLING_FILE, Examples

RECOMMENDED = {
    "steps": 5,
    "temperature": 0.4,
    "top_p": 0.7,
    "self_correction": {"forward_passes": 6},
}
OPTIONS = SamplingOptions(
    steps=5, temperature=0.4, top_p=0.7, self_correction=SelfCorrectionOptions(forward_passes=6)
)
FLAGS = ["--steps", "5", "--temperature", "0.4", "--top-p", "0.7"]
FLAGS += ["--self-correction.forward-passes", "6"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model without the file, and the same model with it."""
    plain = write_model(tmp_path_factory.mktemp("models") / "plain")
    recommended = plain.parent / "recommended"
    pipe = gidd.from_pretrained(plain, device="cpu")
    pipe.sampling = OPTIONS
    pipe.save(recommended)
    return plain, recommended


@pytest.fixture(scope="module")
def pipes(folders):
    return [gidd.from_pretrained(folder, device="cpu") for folder in folders]


def test_a_saved_model_has_its_options_and_no_others(folders, pipes, tmp_path):
    assert json.loads((folders[1] / SAMPLING_FILE).read_text()) == RECOMMENDED
    assert [pipe.sampling for pipe in pipes] == [SamplingOptions(), OPTIONS]
    pipe = pipes[1].to("cpu")
    assert pipe.sampling == OPTIONS
    pipe.save(tmp_path)
    pipes[0].save(tmp_path)  # over it
    assert not (tmp_path / SAMPLING_FILE).exists()


def test_corrections_are_made_as_the_model_recommends(folders, tmp_path, capsys):
    text, options = "I am all", CorrectionOptions(error_rate=0.5, wrong_tokens="frequent")
    plain = gidd.from_pretrained(folders[0], device="cpu")
    plain.correction = options
    plain.save(tmp_path)
    assert json.loads((tmp_path / CORRECTION_FILE).read_text()) == {
        "error_rate": 0.5,
        "wrong_tokens": "frequent",
    }
    pipe = gidd.from_pretrained(tmp_path, device="cpu")
    assert pipe.correction == options == pipe.to("cpu").correction
    given = gidd.from_pretrained(folders[0], device="cpu").correct(
        text, error_rate=0.5, wrong_tokens="frequent"
    )
    assert pipe.correct(text).edits == given.edits
    assert pipe.correct(text).manifest["wrong_tokens"] == "frequent"
    assert pipe.correct(text, wrong_tokens="noise").edits != given.edits
    main(["correct", "--text", text, "--model", str(tmp_path), "--jsonl"])
    assert json.loads(capsys.readouterr().out)["text"] == given.text
    with served({"own": pipe}) as service:
        answer = httpx.post(f"{service.url}/v1/correct", json={"model": "own", "text": text})
    assert answer.json()["error_rate"] == 0.5
    with pytest.raises(ConfigError, match="wrong_tokens must be one of"):
        pipe.correct(text, wrong_tokens="typos")


def test_the_demo_and_the_service_show_the_texts_of_a_model(folders, tmp_path, capsys):
    own = Examples(prompt="I am", blanks="I [MASK:2] all", mistakes="I and all")
    pipe = gidd.from_pretrained(folders[0], device="cpu")
    pipe.examples = own
    pipe.save(tmp_path)
    assert gidd.from_pretrained(tmp_path, device="cpu").examples == pipe.to("cpu").examples == own
    main(["demo", "--model", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "\nI am" in printed
    assert "\nI [MASK:2] all" in printed
    main(["demo", "--model", str(tmp_path), "--prompt", "We", "--correct", "us us"])
    printed = capsys.readouterr().out
    assert "\nWe" in printed
    assert "\nI am" not in printed
    with served({"own": pipe}) as service:
        (model,) = httpx.get(f"{service.url}/v1/models").json()["data"]
    assert model["examples"] == {
        "prompt": "I am",
        "blanks": "I [MASK:2] all",
        "mistakes": "I and all",
    }
    (tmp_path / EXAMPLES_FILE).write_text('{"mistake": "I"}')
    with pytest.raises(CheckpointError, match=r"examples.json.*mistake"):
        gidd.from_pretrained(tmp_path, device="cpu")


def test_methods_use_them_where_nothing_else_is_given(pipes):
    plain, pipe = pipes
    for name, argument in (("generate", "I"), ("infill", "I [MASK:3] all")):
        expected = getattr(plain, name)(argument, options=OPTIONS)
        assert [each.tokens for each in getattr(pipe, name)(argument)] == [
            each.tokens for each in expected
        ]
        changed = getattr(pipe, name)(argument, temperature=1.0, top_p=None)
        same = getattr(plain, name)(argument, options=replace(OPTIONS, temperature=1.0, top_p=None))
        assert changed[0].tokens == same[0].tokens
        own = getattr(pipe, name)(argument, options=SamplingOptions(steps=3))
        assert own[0].tokens == getattr(plain, name)(argument, steps=3)[0].tokens
    messages = [{"role": "user", "content": "I"}]
    assert pipe.chat(messages).text == plain.chat(messages, options=OPTIONS).text
    streams = [pipe.stream("I"), plain.stream("I", options=replace(OPTIONS, block_length=32))]
    assert len({"".join(stream.pieces()) for stream in streams}) == 1


def test_commands_use_them_where_no_option_is_given(folders, capsys):
    plain, recommended = map(str, folders)

    def printed(*words):
        main([*words, "--device", "cpu"])
        return capsys.readouterr().out

    for command in (["sample"], ["infill"]):
        text = [] if command == ["sample"] else ["I [MASK:3] all"]
        expected = printed(*command, plain, *text, *FLAGS)
        assert printed(*command, recommended, *text) == expected
        back = ["--temperature", "1", "--self-correction.forward-passes", "0"]
        changed = [*FLAGS, *back]  # options as the library has them
        assert printed(*command, recommended, *text, *back) == printed(
            *command, plain, *text, *changed
        )


def test_commands_use_those_of_a_model_on_the_hub(folders, tmp_path, capsys):
    """Downloaded by themselves, before the weights; a model without the file has none."""
    texts = []
    with serve_hub(tmp_path / "cache") as hub:
        for name, folder, flags in zip(("plain", "own"), folders, (FLAGS, []), strict=True):
            for file in folder.iterdir():
                hub.add(f"me/{name}", file.name, file.read_bytes())
            main(["sample", f"me/{name}", "--device", "cpu", *flags])
            texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def test_the_service_uses_them_where_the_body_has_no_option(pipes):
    plain, pipe = pipes
    own = {"steps": 5, "temperature": 0.4, "top_p": 0.7, "self_correction": 6}
    cases = (("plain", own), ("own", {}), ("plain", {}), ("own", {"top_p": 1.0}))
    texts = []
    with served({"plain": plain, "own": pipe}) as service:
        for model, fields in cases:
            body = {"model": model, "prompt": "I", "max_tokens": 8, "seed": 1} | fields
            answer = httpx.post(f"{service.url}/v1/completions", json=body)
            texts.append(answer.raise_for_status().json()["choices"][0]["text"])
    assert texts[0] == texts[1] != texts[2]
    expected = plain.generate("I", max_tokens=8, seed=1, options=replace(OPTIONS, top_p=None))
    assert texts[3] == expected[0].filled[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"steps": 0}', "steps must be an integer from 1"),
        ('{"steps": "many"}', "steps must be"),
        ('{"shots": 3}', "unknown fields .*shots"),
        ('{"self_correction": 3}', "self_correction must be"),
        ('{"self_correction": {"patience": 0}}', "patience must be an integer of at least 1"),
        ("[1]", "it must be an object"),
    ],
)
def test_a_wrong_file_is_refused_by_field(content, message, folders, tmp_path):
    pipe = gidd.from_pretrained(folders[0], device="cpu")
    pipe.save(tmp_path)
    (tmp_path / SAMPLING_FILE).write_text(content)
    with pytest.raises(CheckpointError, match=rf"{SAMPLING_FILE}.*{message}.*delete it"):
        gidd.from_pretrained(tmp_path, device="cpu")
