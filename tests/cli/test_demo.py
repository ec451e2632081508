"""`gidd demo` and models of installed distributions."""

from importlib.metadata import EntryPoint

import pytest
from support.small_model import write_model

import gidd
from gidd.cli import main
from gidd.common import local_models
from gidd.evaluation.graders import load_grader


@pytest.fixture
def installed(tmp_path, monkeypatch) -> str:
    """A model that a distribution provides under the name of tests."""
    folder = write_model(tmp_path / "model", context=80)
    monkeypatch.setattr("support.small_model.FOLDER", folder, raising=False)
    point = EntryPoint("of-tests", "support.small_model:FOLDER", local_models.INSTALLED_MODELS)

    def entry_points(*, group: str, name: str = "of-tests"):
        return [point] if name == "of-tests" else []

    monkeypatch.setattr(local_models, "entry_points", entry_points)
    return "of-tests"


def test_an_installed_model_is_loaded_by_its_name(installed, tmp_path, monkeypatch):
    pipe = gidd.from_pretrained(installed, device="cpu")
    assert pipe.describe()["model"]["name"] == installed
    monkeypatch.chdir(tmp_path)
    (tmp_path / installed).mkdir()  # a folder here comes first
    with pytest.raises(gidd.errors.CheckpointError, match="contains neither"):
        gidd.from_pretrained(installed, device="cpu")


@pytest.mark.slow
def test_no_command_asks_the_hub_for_an_installed_model(installed, tmp_path, monkeypatch, capsys):
    asked = []

    def refuse(*address, **_):
        asked.append(address)
        raise OSError("no network")

    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    texts, folder = tmp_path / "texts.jsonl", str(tmp_path / "model")
    texts.write_text('{"text": "peace and plenty for all"}\n' * 4)
    own = gidd.data.Tokenizer.load(folder).fingerprint
    main(["data", "prepare", str(texts), "--tokenizer", installed, "--out", str(tmp_path / "data")])
    assert gidd.data.DataManifest.read(tmp_path / "data").tokenizer == own
    main(["export", installed, "--out", str(tmp_path / "copy")])
    assert gidd.from_pretrained(tmp_path / "copy", device="cpu").tokenizer.fingerprint == own
    main(["eval", "ppl", installed, str(texts), "--repeats", "2", "--device", "cpu"])
    main(["push", installed, "me/model", "--dry-run"])
    assert "gidd.json" in capsys.readouterr().out
    with pytest.raises(gidd.errors.GiddError, match="grader of-tests"):
        load_grader(installed)
    assert not asked


def test_an_installed_model_is_tuned_with_its_own_tokenizer(installed, tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": "peace and plenty for all"}\n' * 30)
    tuned = gidd.train(
        tmp_path / "run",
        data=[str(tmp_path / "texts.jsonl")],
        init_from=installed,
        steps=1,
        length=16,
        global_batch=2,
        evaluate_samples=2,
        generate_samples=0,
        device="cpu",
        quiet=True,
    )
    source = gidd.from_pretrained(installed, device="cpu").tokenizer
    assert tuned.tokenizer.fingerprint == source.fingerprint


def test_the_demo_writes_corrects_and_fills(installed, capsys):
    prompt, blanks = "ab", "a[MASK:2]b"
    main(["demo", "--model", installed, "--prompt", prompt, "--infill", blanks])
    out = capsys.readouterr().out
    assert "1. The model" in out and "2. It reads" in out and "4. It fills" in out
    assert "first choice:" in out and blanks in out and f"gidd serve {installed}" in out


def test_without_the_model_the_demo_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(local_models, "INSTALLED_MODELS", "gidd.models.of.nobody")
    with pytest.raises(SystemExit) as stopped:
        main(["demo"])
    assert stopped.value.code == 2 and "pip install gidd-nano" in capsys.readouterr().err
