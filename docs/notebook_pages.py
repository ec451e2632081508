"""Write the notebooks of docs/tutorial as pages of the site (`make docs`).

python docs/notebook_pages.py
"""

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent


def page_of(notebook: Path) -> str:
    """Return a notebook as Markdown: its text, its code and what the code printed or drew."""
    parts: list[str] = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```py\n{source}\n```")
        parts.extend(map(output_of, cell.get("outputs", [])))
    parts.insert(1, f"This page is a [notebook]({notebook.name}): download it to run it.")
    if not (DOCS / "results.md").exists():  # it is written after a long run
        parts = [part.replace("](../results.md)", "](../index.md)") for part in parts]
    return "\n\n".join(parts) + "\n"


def output_of(output: dict[str, Any]) -> str:
    """Return a picture, or text as a block."""
    data = output.get("data", {})
    if "image/png" in data:
        return f"![What the code drew](data:image/png;base64,{''.join(data['image/png']).strip()})"
    text = "".join(output.get("text") or data["text/plain"]).strip("\n")
    return f"```text\n{text}\n```"


if __name__ == "__main__":
    for notebook in sorted((DOCS / "tutorial").glob("*.ipynb")):
        notebook.with_suffix(".md").write_text(page_of(notebook), encoding="utf-8")
