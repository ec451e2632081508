"""`gidd sample` and `gidd infill` as a user types them."""

import io
import json
import os
import re
import subprocess
import sys

import pytest
from support.small_model import write_model

from gidd.cli import main
from gidd.cli.model_options import show_steps
from gidd.cli.output import print_text
from gidd.diffusion.times import even_times
from gidd.sampling import Event, Request, blanks, sampling_plan

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')

FEW = ["--steps", "3", "--length", "12"]
HOSTILE = "\x1b[2J\x07 <img onerror=x> \u202e"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model")))


def gidd(capsys, *words: str) -> tuple[str, str]:
    main(words)
    captured = capsys.readouterr()
    return captured.out, captured.err


@pytest.mark.slow
def test_sample_prints_plain_text_to_a_pipe(capsys, model):
    out, err = gidd(capsys, "sample", model, *FEW, "--prompt", "Peace", "--device", "cpu")
    assert out.startswith("Peace")
    assert "\x1b" not in out
    assert err == ""
    again, _ = gidd(capsys, "sample", model, *FEW, "--prompt", "Peace", "--device", "cpu")
    assert again == out
    several, _ = gidd(capsys, "sample", model, *FEW, "--prompt", "Peace", "--num-samples", "3")
    assert several.startswith(f"--- 1 of 3\n{out}--- 2 of 3\nPeace")


@pytest.mark.slow
def test_jsonl_is_one_object_for_each_text(capsys, model):
    out, _ = gidd(capsys, "sample", model, *FEW, "--num-samples", "3", "--jsonl", "--seed", "4")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["manifest"]["sample_index"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert row["confidence"] is None
        assert "edits" not in row
    alone, _ = gidd(capsys, "sample", model, *FEW, "--start-index", "2", "--jsonl", "--seed", "4")
    assert json.loads(alone)["text"] == rows[2]["text"]
    out, _ = gidd(capsys, "sample", model, *FEW, "--jsonl", "--edits", "--confidence")
    row = json.loads(out)
    assert len(row["tokens"]) == len(row["confidence"])
    assert {"position", "old", "new", "probability"} <= set(row.pop("edits")[0])
    assert row.keys() == rows[0].keys()


def test_infill_keeps_what_is_given(capsys, model, monkeypatch):
    out, _ = gidd(capsys, "infill", model, "Peace[MASK:3] all", "--steps", "3", "--jsonl")
    row = json.loads(out)
    assert row["text"] == f"Peace{row['filled'][0]} all"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("–[MASK]“".encode())))
    out, _ = gidd(capsys, "infill", model, "-", "--steps", "3")
    assert out.startswith("–")
    assert out.endswith("“\n")


def test_text_of_a_pattern_or_a_schema(capsys, model, tmp_path):
    words = "sample", model, "--steps", "2", "--max-tokens", "9"
    for more in ([], ["--block-length", "4"]):
        out, _ = gidd(capsys, *words, "--prompt", "Peace", "--pattern", "[x-z]{2,5}", *more)
        assert re.fullmatch("Peace[x-z]{2,5}\n", out)
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["a", "bc"]}')
    out, _ = gidd(capsys, *words, "--schema", str(schema))
    assert json.loads(out) in ("a", "bc")
    out, _ = gidd(capsys, "infill", model, "Peace[MASK:3].", "--pattern", "[abc]+", "--steps", "2")
    assert re.fullmatch("Peace[abc]+\\.\n", out)
    for more in (["--schema", str(schema)], ["--stop", "a"], ["--out", str(tmp_path / "out")]):
        with pytest.raises(SystemExit):
            main([*words, "--pattern", "a", *more])
        assert "pattern" in capsys.readouterr().err


def test_infill_with_choices_and_guidance(capsys, model):
    words = ["Peace[MASK:2] all", "--choices", "ab", "cd", "--guidance-scale", "2", "--steps", "3"]
    out, _ = gidd(capsys, "infill", model, *words, "--negative-prompt", "of")
    assert out in ("Peaceab all\n", "Peacecd all\n")


def test_pages_are_written(capsys, model, tmp_path):
    page = tmp_path / "pages" / "sample.html"
    _, err = gidd(capsys, "sample", model, *FEW, "--html", str(page), "--prompt", "</script>")
    assert str(page) in err
    assert page.read_text().count("</script>") == 2
    gidd(capsys, "sample", model, "--steps", "3", "--html", str(page), "--prompt", HOSTILE)
    assert "<img onerror" not in page.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sample", "MODEL", "--length", "99"], "32 tokens"),
        (["infill", "MODEL", "[MASK:x]"], "[MASK:x]"),
    ],
)
def test_mistakes_end_in_one_message(capsys, model, words, message):
    with pytest.raises(SystemExit) as stopped:
        main([model if word == "MODEL" else word for word in words])
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_a_terminal_gets_the_lines_of_the_text_and_no_others(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    text = 60 * "word " + "[bold]1[/bold] :smile:\n"
    print_text(text + "\x1b[2J")
    assert capsys.readouterr().out == text + "\ufffd[2J\n"


def test_the_bar_names_the_action_and_fits_40_columns(capsys, monkeypatch):
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm-256color"), ("COLUMNS", "40")):
        monkeypatch.setenv(name, value)
    plan = sampling_plan(even_times(256))
    requests = [Request(tokens=blanks(1), plan=plan, sample_index=i) for i in range(2)]
    with show_steps("sampling", None, 10, live=False) as on_step:
        done = zip(requests, (200, 100), strict=True)
        on_step([Event(request, steps_done=steps, num_steps=256) for request, steps in done])
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    lines = [line for line in re.split(r"[\r\n]+", shown) if line]
    assert any(line.startswith("sampling step  300/2560") for line in lines)
    assert max(map(len, lines)) <= 40
    assert "…" not in shown


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_live_view_restores_the_terminal(model):
    import pty

    code = "from gidd.cli import main; main()"
    words = ["sample", model, "--steps", "40", "--prompt", "Peace", "--live", "--num-samples", "2"]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdin=child,
        stdout=child,
        stderr=child,
        env=environment,
    )
    os.close(child)
    seen = b""
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        seen += part
    os.close(parent)
    assert process.wait() == 0
    out = seen.decode()
    assert "sequence 1 of 2" in out
    assert "░░░" in out
    assert "step " in out
    assert "self-accuracy" in out
    hidden, shown = out.rindex("\x1b[?25l"), out.rindex("\x1b[?25h")
    assert hidden < shown
    final = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out[shown:])
    assert final.strip().startswith("--- 1 of 2")
    assert "Peace" in final
