"""`gidd-proof check`: what it prints, its exit status, words of users and projects."""

import json
import shutil
import subprocess
import sys

import gidd_proof
import pytest
from gidd_proof.cli import main

TEXT = "A clean line.\nThe peopel 🙂 came togehter.\n"


@pytest.fixture(autouse=True)
def _folder(proofreader, monkeypatch, tmp_path):
    monkeypatch.setattr(gidd_proof, "load", lambda *_, **__: proofreader, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letter.txt").write_text(TEXT)


def run(capsys, *words):
    with pytest.raises(SystemExit) as stopped:
        main(["check", *words])
    return stopped.value.code, capsys.readouterr().out


def test_mistakes_are_reported_by_place(capsys, tmp_path):
    code, out = run(capsys, "letter.txt", "--format", "brief")
    assert (code, out.splitlines()) == (
        1,
        ["letter.txt:2:5: peopel -> people", "letter.txt:2:19: togehter -> together"],
    )
    assert "letter.txt:2:5: `peopel` should be `people` (" in run(capsys, "letter.txt")[1]
    assert (tmp_path / "letter.txt").read_text() == TEXT
    (tmp_path / "clean.txt").write_text("The people came.\n")
    (tmp_path / "empty.txt").write_text("")
    assert run(capsys, "clean.txt", "empty.txt") == (0, "")


def test_json_and_sarif(capsys):
    code, out = run(capsys, "letter.txt", "--format", "json")
    first = json.loads(out.splitlines()[0])
    assert (code, first["line"], first["column"], first["new"]) == (1, 2, 5, "people")
    log = json.loads(run(capsys, "letter.txt", "--format", "sarif")[1])
    region = log["runs"][0]["results"][1]["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 2, "startColumn": 19, "endColumn": 27}
    assert json.loads(run(capsys, "letter.txt", "--format", "sarif", "--protect", ".")[1])


@pytest.mark.parametrize("place", [".gidd-proof-words", "config/gidd-proof/words", "mine"])
def test_words_of_the_project_the_user_and_the_options(capsys, tmp_path, place):
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("# ours\nPeopel  # a name\n")
    words = ["--words", "mine"] if place == "mine" else []
    assert run(capsys, "letter.txt", "--format", "brief", *words) == (
        1,
        "letter.txt:2:19: togehter -> together\n",
    )


def test_wrong_options_are_status_2(capsys):
    assert run(capsys, "letter.txt", "--min-confidence", "2")[0] == 2
    assert run(capsys, "missing.txt")[0] == 2


@pytest.mark.skipif(not shutil.which("pre-commit"), reason="needs pre-commit and git")
def test_pre_commit_runs_the_hook(tmp_path):
    """In a real repository, the hook stops a commit with a mistake and lets a clean one pass."""
    config = tmp_path / ".pre-commit-config.yaml"
    entry = f"{sys.executable} -m gidd_proof check"
    hook = {"id": "gidd-proof", "name": "proof", "entry": entry, "language": "system"}
    config.write_text(json.dumps({"repos": [{"repo": "local", "hooks": [hook]}]}))

    def call(*command):
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    call("git", "init", "--quiet")
    call("git", "add", "letter.txt")
    done = call("pre-commit", "run")
    assert done.returncode == 1
    assert "letter.txt:2:5" in done.stdout
    (tmp_path / "letter.txt").write_text("The people came.\n")
    call("git", "add", "letter.txt")
    done = call("pre-commit", "run")
    assert done.returncode == 0, done.stdout
