"""Draw what `gidd demo` prints as the picture of README: python benchmarks/demo_picture.py."""

from __future__ import annotations

import io
import re
from pathlib import Path

import gidd
from gidd.cli.demo import DemoOptions, show_correction
from gidd.cli.output import CliConsole

OUT = Path(__file__).parents[1] / "docs" / "images" / "demo.svg"


def main() -> None:
    """Run the first two parts of the demo on a recorded console."""
    console = CliConsole(
        record=True, force_terminal=True, width=96, file=io.StringIO(), highlight=False
    )
    show_correction(console, gidd.from_pretrained("nano", device="cpu"), DemoOptions())
    drawn = console.export_svg(title="gidd demo")
    OUT.write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.S))  # fonts of the web
    print(f"wrote {OUT}")


if __name__ == "__main__":
    main()
