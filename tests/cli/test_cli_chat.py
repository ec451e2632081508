"""`gidd chat` in a pipe, and in a terminal as a user types."""

import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest
from support.small_model import write_model

import gidd
from gidd.cli import main
from gidd.cli.chat import ChatOptions, Conversation
from gidd.cli.output import CliConsole
from gidd.pipeline import SamplingOptions
from gidd.viz.terminal import AnswerView

FEW = ["--steps", "3", "--max-tokens", "6", "--device", "cpu"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model"), context=80))


@pytest.fixture
def chat(model, capsys, monkeypatch):
    def run(given: bytes, *words: str) -> tuple[str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
        main(["chat", model, *FEW, *words])
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run


def test_a_pipe_gets_a_line_for_each_message(chat, model):
    out, err = chat("Peace\n \n/undo – “plenty”".encode())
    assert out.count("\n") == 2 and "\x1b" not in out
    warning, *others = err.splitlines()
    assert model in warning and "no chat template" in warning
    assert all("do not fit" in line for line in others)
    assert chat(b"Peace\n")[0] == out.splitlines()[0] + "\n"
    assert chat(b"Peace\n", "--seed", "1")[0] != chat(b"Peace\n")[0]


def test_jsonl_has_the_conversation(chat):
    out, _ = chat(b"Peace\nall\n", "--jsonl", "--system", "Be\nbrief.")
    first, second = (json.loads(line)["messages"] for line in out.splitlines())
    assert [one["role"] for one in second] == ["system", *["user", "assistant"] * 2]
    assert first == second[:3] and first[0]["content"] == "Be\nbrief."
    answer = first[2]["content"]
    assert chat(b"Peace\n", "--system", "Be\nbrief.")[0].split() == answer.split()
    assert answer == answer.strip()


def test_an_answer_ends_before_a_stop_string(chat):
    answer = chat(b"Peace\n")[0].rstrip("\n")
    stop = answer.split()[-1][0]
    assert chat(b"Peace\n", "--stop", "never", stop)[0] == answer.partition(stop)[0].rstrip() + "\n"


@pytest.mark.parametrize(
    ("given", "words", "message"),
    [
        (b"a\n\xff\n", [], "line 2 of standard input must be UTF-8"),
        (b"a <|endoftext|>\n", [], "special token <|endoftext|>"),
        (b"a" * 99, [], "context of 80 tokens"),
    ],
)
def test_mistakes_end_in_one_message(chat, capsys, given, words, message):
    with pytest.raises(SystemExit) as stopped:
        chat(given, *words)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("block_length", [None, 8])
def test_an_interrupted_answer_is_kept(tmp_path, capsys, monkeypatch, block_length):
    """In blocks, with those that were finished."""
    pipe = gidd.from_pretrained(write_model(tmp_path / "m", p_uniform=0, context=80), device="cpu")
    sampling = SamplingOptions(steps=8, block_length=block_length)
    chat = Conversation(pipe, ChatOptions(model="m", max_tokens=16, sampling=sampling))
    record, seen = AnswerView.__call__, []

    def interrupt(view, events):
        record(view, events)
        seen.append(events[0])
        is_last = len({id(event.request) for event in seen}) == 16 // (block_length or 16)
        if is_last and events[0].steps_done == events[0].num_steps - 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(AnswerView, "__call__", interrupt)
    chat.show_answer([], "Peace", CliConsole())
    tokens = seen[-1].request.truncate_at_stop(seen[-1].tokens)
    written = [
        v for v in tokens[seen[0].request.first_blank :] if v != pipe.tokenizer.vocab.mask_id
    ]
    answer = "".join(pipe.decoder(written)).strip()
    assert 0 < len(written) < 16 and pipe.tokenizer.vocab.mask_id in tokens
    assert chat.messages == [
        {"role": "user", "content": "Peace"},
        {"role": "assistant", "content": answer},
    ]
    out, err = capsys.readouterr()
    assert answer in out and "kept" in err
    monkeypatch.setattr(AnswerView, "__call__", record)
    chat.show_answer(chat.messages, "all", CliConsole())
    assert len(chat.messages) == 4


class Terminal:
    """A command on a pseudo-terminal, which is its controlling one: Ctrl-C is a signal."""

    def __init__(self, words: list[str]) -> None:
        import fcntl
        import pty
        import termios

        def own_the_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored below nohup, and inherited

        self._side, child = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from gidd.cli import main; main()", *words],
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            preexec_fn=own_the_terminal,
            env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
        )
        os.close(child)
        self._seen = ""

    def write(self, text: str) -> None:
        os.write(self._side, text.encode())

    def read_to(self, text: str) -> str:
        """Return what is shown up to a text, without escape sequences."""
        deadline = time.monotonic() + 120
        while text not in self._seen:
            if select.select([self._side], [], [], 1)[0]:
                part = os.read(self._side, 1 << 16).decode(errors="replace")
                self._seen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", part)
            assert time.monotonic() < deadline, self._seen
        before, _, self._seen = self._seen.partition(text)
        return before + text

    def interrupt(self) -> None:
        """Press Ctrl-C at the prompt, again if no new line is shown.

        Python's readline loses a signal between showing the prompt and waiting for a key, and
        sees it at the next one. A person's finger is too slow for that, a test is not.
        """
        time.sleep(0.5)
        shown = b""
        while b"\n" not in shown:
            self.write("\x03")
            while b"\n" not in shown and select.select([self._side], [], [], 10)[0]:
                shown += os.read(self._side, 1 << 16)

    def wait(self) -> int:
        try:
            while select.select([self._side], [], [], 300)[0] and os.read(self._side, 1 << 16):
                pass
        except OSError:  # the other side is closed
            pass
        os.close(self._side)
        return self._process.wait(300)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_conversation_in_a_terminal(model):
    terminal = Terminal(["chat", model, *FEW, "--max-tokens", "12"])
    assert "no chat template" in terminal.read_to("> ")

    def type_line(line: str) -> str:
        """Return what is shown after a line, up to the next prompt."""
        terminal.write(line + "\n")
        terminal.read_to(f"{line}\r\n")
        return terminal.read_to("\n> ")

    assert "/undo needs an answer" in type_line("/undo")
    assert "/again " in type_line("/help") and "/quit" in type_line("/what")
    assert "steps must be an integer from 1" in type_line("/steps four")
    assert "4 steps per answer." in type_line("/steps 4")
    shown = type_line("Peace")
    assert "░" in shown and "step 1 of 4" in shown
    first = shown.rpartition("blanks")[2]
    again = type_line("/again").rpartition("blanks")[2]
    assert first.strip() != again.strip()
    assert "removed: Peace" in type_line("/undo")
    assert "/again needs an answer" in type_line("/again")
    assert "special token" in type_line("a<|endoftext|>")
    type_line("/steps 100000")
    terminal.write("Peace\n")
    terminal.read_to("step 3")
    terminal.write("\x03")
    assert "stopped; what was written is kept." in terminal.read_to("\n> ")
    assert "removed: Peace" in type_line("/undo")
    terminal.write("\x04")
    assert terminal.wait() == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("is_interrupted", [True, False])
def test_ways_to_leave(model, is_interrupted):
    terminal = Terminal(["chat", model, *FEW])
    terminal.read_to("> ")
    if is_interrupted:
        terminal.interrupt()
    else:
        terminal.write("/quit\n")
    assert terminal.wait() == 0
