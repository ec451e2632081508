"""The notebooks of the tutorial run from beginning to end."""

from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "tutorial").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    settings = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=900, resources=settings).execute()
    errors = [o for cell in notebook.cells for o in cell.get("outputs", ()) if "ename" in o]
    assert NOTEBOOKS and not errors
