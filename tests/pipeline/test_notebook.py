"""`gidd.train` in a real notebook: progress below the cell, short reprs, no foreign warnings."""

import nbclient
import nbformat
import pytest
from support.training_runs import speeches

CELLS = [
    "import gidd",
    """pipe = gidd.train(
        {out!r}, data={data!r}, steps=20, length=16, global_batch=4, evaluate_samples=4,
        model=gidd.component("backbone", "dit", width=16, num_layers=1, num_heads=2, time_width=8),
        device="cpu", trackers=["tensorboard"],
    )""",
    "pipe",
    "pipe.generate(length=8, steps=4)[0]",
]


@pytest.mark.long
def test_training_in_a_notebook(tmp_path):
    data = speeches(tmp_path / "data", documents=8)
    places = {"out": str(tmp_path / "run"), "data": str(data)}
    cells = [nbformat.v4.new_code_cell(cell.format(**places)) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=600).execute()
    imported, trained, model, sample = (cell.outputs for cell in notebook.cells)
    assert imported == []
    lines = [output["data"]["text/plain"] for output in trained]  # nothing on stdout or stderr
    assert any(line.startswith("step 20/20  loss ") for line in lines)
    assert any(" left" in line for line in lines)
    assert "<Pipeline" in model[0]["data"]["text/plain"]
    assert len(model[0]["data"]["text/plain"]) < 250
    assert sample[0]["data"]["text/plain"].startswith("<Generation: ")
    assert list((tmp_path / "run" / "tensorboard").iterdir())
