"""What docs/serving.md says that its examples return; test_documented_blocks.py runs them all."""

import json
import re
import subprocess
from pathlib import Path

import httpx
import pytest
from support.service import served

from gidd.cli import main

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


def run(command: str, url: str) -> str:
    command = command.replace(ADDRESS, url)
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True).stdout


def test_the_metrics_of_the_page_exist(nano):
    (command,) = (command for command in commands("curl") if "/metrics" in command)
    names = set(re.findall(r"`(gidd_\w+)`", PAGE))
    shown = run(command, nano.url)
    assert len(names) >= 8 and all(name in shown for name in names)


@pytest.mark.parametrize("command", [c for c in commands("curl") if '"stream": true' in c])
def test_streams_have_the_events_of_the_page(nano, command):
    *lines, end = filter(None, run(command, nano.url).splitlines())
    assert end == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert events and not any("error" in event for event in events)
    assert any("diffusion_meta" in event for event in events) == ("diffusing" in command)


def test_all_routes_have_an_example(nano):
    paths = httpx.get(f"{nano.url}/openapi.json").json()["paths"]
    shown = {path_of(command) for command in commands("curl")}
    assert set(paths) - shown == {"/", "/v1/models/{name}"}


def test_options_of_the_text_exist(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    known = capsys.readouterr().out
    options = set(re.findall(r"`--([\w-]+)", PAGE)) - {"data"}
    assert options and all(f"--{option} " in known for option in options)


def test_openai(nano, capsys):
    pytest.importorskip("openai", reason="pip install 'gidd[eval]' installs OpenAI's client")
    (block,) = blocks("py")
    names = {}
    exec(compile(block.replace(ADDRESS, nano.url), "docs/serving.md", "exec"), names)
    names["client"].close()
    assert capsys.readouterr().out
