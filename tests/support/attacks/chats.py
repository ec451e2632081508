"""Hostile chats, and hostile templates of the tokenizer that reads them."""

import json
from functools import partial
from pathlib import Path

from support.attacks.tools import ESCAPE, Attack, become_link, become_pipe, nested, write_json

_QUESTION = {"role": "user", "content": "a"}
_ANSWER = {"role": "assistant", "content": "b"}


def _line(line: str, folder: Path) -> None:
    with (folder / "chats.jsonl").open("a", encoding="utf-8", errors="surrogatepass") as file:
        file.write(line + "\n")


def _messages(*messages: object) -> str:
    return json.dumps({"messages": messages})


def _template(text: object, folder: Path) -> None:
    path = folder.parent / "model" / "tokenizer_config.json"
    write_json(path, json.loads(path.read_text()) | {"chat_template": text})


_LINES: dict[str, str] = {
    "not JSON": "{",
    "NaN": '{"prompt": NaN, "response": "a"}',
    "a list": "[]",
    "no messages": _messages(),
    "another role": _messages(_QUESTION | {"role": "root"}, _ANSWER),
    "a role of escapes": _messages(_QUESTION | {"role": ESCAPE}, _ANSWER),
    "content in parts": _messages(_QUESTION | {"content": [{"type": "text"}]}, _ANSWER),
    "special tokens in the last answer": '{"prompt": "a", "response": "[MASK] [PAD]"}',
    "special tokens in a name": _messages(_QUESTION | {"name": "<|endoftext|>"}, _ANSWER),
    "a lone surrogate": '{"prompt": "\\ud800", "response": "a"}',
    "a long number": '{"prompt": ' + "9" * 5000 + ', "response": "a"}',
    "nested": '{"messages": ' + nested(10**5),
    "10^4 messages": _messages(*[_QUESTION, _ANSWER] * 5000),
    "a prompt of 30 MB": json.dumps({"prompt": "a " * 15_000_000, "response": "b"}),
    "40 MB": json.dumps({"prompt": "a" * 40_000_000, "response": "b"}),
}
_TEMPLATES: dict[str, object] = {
    "not text": 5,
    "a list": [{"name": ESCAPE, "template": "x"}],
    "not valid": "{% for %}",
    "nested": "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
    "an import": "{% import 'os' as os %}{{ os.system('touch executed') }}",
    "a function of Jinja": "{{ lipsum.__globals__['os'].popen('touch executed').read() }}",
    "a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a file": "{% include '/etc/passwd' %}",
    "recursive": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a change of messages": "{{ messages.pop() }}",
    "an error of escapes": "{{ raise_exception('" + ESCAPE + "') }}",
    "the mask": "{% for m in messages %}[MASK]{{ m.content }}{% endfor %}",
}

ATTACKS: dict[str, Attack] = {
    **{f"chat: {name}": partial(_line, line) for name, line in _LINES.items()},
    **{f"template is {name}": partial(_template, text) for name, text in _TEMPLATES.items()},
    "chats are a pipe": lambda folder: become_pipe(folder / "chats.jsonl"),
    "chats are /dev/zero": lambda folder: become_link(folder / "chats.jsonl", "/dev/zero"),
}
"""On a folder of chats; times and sizes that a template may take have no limit."""
