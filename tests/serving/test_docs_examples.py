"""The examples of docs/serving.md, against a service with a small model."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import httpx
import pytest
from support.service import served

from gidd.cli.model_options import parse_checked
from gidd.cli.serve import ServeOptions

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
ADDRESS = "http://127.0.0.1:8000"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.S)


def commands(start: str) -> list[str]:
    """Return the commands of the page that begin with a word; a quoted body may span lines."""
    pattern = rf"^{start} [^\n'#]*(?:'[^']*')?"
    return [found for block in blocks("bash") for found in re.findall(pattern, block, re.M)]


def path_of(command: str) -> str:
    return re.findall(rf"{ADDRESS}(/\S+)", command)[0]


@pytest.fixture(scope="module")
def nano(pipelines):
    with served({"nano": pipelines["hybrid"], "chat": pipelines["hybrid"]}) as found:
        yield found


@pytest.mark.parametrize("command", commands("curl"), ids=path_of)
def test_curl(nano, command):
    result = subprocess.run(
        ["bash", "-c", command.replace(ADDRESS, nano.url)],
        env=os.environ | {"GIDD_API_KEY": "any"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    if "/metrics" in command:
        names = set(re.findall(r"`(gidd_\w+)`", PAGE))
        assert len(names) >= 8 and all(name in result.stdout for name in names)
    elif '"stream": true' in command:
        lines = [line for line in result.stdout.splitlines() if line]
        assert lines.pop() == "data: [DONE]"
        events = [json.loads(line.removeprefix("data: ")) for line in lines]
        assert events and not any("error" in event for event in events)
        assert any("diffusion_meta" in event for event in events) == ("diffusing" in command)
    else:
        assert "error" not in json.loads(result.stdout)


def test_all_routes_have_an_example(nano):
    paths = httpx.get(f"{nano.url}/openapi.json").json()["paths"]
    shown = {path_of(command) for command in commands("curl")}
    assert set(paths) - shown == {"/", "/v1/models/{name}"}


def test_options_of_the_page_exist():
    for command in commands("gidd serve"):
        words = shlex.split(command)
        assert parse_checked(ServeOptions, "gidd serve", None, words[2:]).models
    options = set(re.findall(r"`--([\w-]+)", PAGE)) - {"data"}
    known = subprocess.run(["gidd", "serve", "--help"], capture_output=True, text=True).stdout
    assert all(f"--{option} " in known for option in options)


def test_openai(nano, capsys):
    pytest.importorskip("openai", reason="pip install 'gidd[eval]' installs OpenAI's client")
    (block,) = blocks("py")
    names = {}
    exec(compile(block.replace(ADDRESS, nano.url), "docs/serving.md", "exec"), names)
    names["client"].close()
    assert capsys.readouterr().out
