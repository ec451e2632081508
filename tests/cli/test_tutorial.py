"""The notebooks of the tutorial run from beginning to end."""

import dataclasses
import re
from pathlib import Path

import nbclient
import nbformat
import pytest
from support.registrations import temporary_registrations

from gidd.data.corpora import CORPORA

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "tutorial").glob("*.ipynb"))
FEWER = {
    r"range\(801\)": "range(101)",
    r"\bsteps=\d{3}\b": "steps=2",
    r"\b24, steps=32\b": "3, steps=4",
    r"\bforward_passes=48\b": "forward_passes=4",
    r"\barange\(12\)": "arange(2)",
    r"length=256, seed=1": "length=16, steps=4, seed=1",
}
"""What runs in place of long trainings and many samples; at night everything runs as it stands."""


def code(path: Path) -> str:
    cells = nbformat.read(path, as_version=4).cells
    return "\n".join(cell.source for cell in cells if cell.cell_type == "code")


@pytest.mark.parametrize("pattern", FEWER)
def test_what_is_replaced_is_there(pattern):
    assert any(re.search(pattern, code(path)) for path in NOTEBOOKS)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_run_on_little_data(path, tmp_path, monkeypatch, capsys):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pyplot, "show", pyplot.close)
    few = dataclasses.replace(CORPORA["sentences"], num_documents=60, held_out=20)
    monkeypatch.setitem(CORPORA, "sentences", few)
    text = code(path)
    for pattern, by in FEWER.items():
        text = re.sub(pattern, by, text)
    with temporary_registrations():
        exec(compile(text, str(path), "exec"), {"__name__": "notebook"})
    assert capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    settings = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=900, resources=settings).execute()
    errors = [o for cell in notebook.cells for o in cell.get("outputs", ()) if "ename" in o]
    assert NOTEBOOKS and not errors
