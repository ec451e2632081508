"""Draw what `gidd demo` prints as the picture of README: python benchmarks/demo_picture.py."""

from __future__ import annotations

import io
import re
from pathlib import Path

from script import parser_of

import gidd
from gidd.cli.demo import DemoOptions, show_correction, show_sample
from gidd.cli.output import CliConsole

OUT = Path(__file__).parents[1] / "docs" / "images" / "demo.svg"


def main() -> None:
    """Run the first three parts of the demo on a recorded console."""
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    out: Path = parser.parse_args().out
    console = CliConsole(
        record=True, force_terminal=True, width=96, file=io.StringIO(), highlight=False
    )
    pipe = gidd.from_pretrained("nano", device="cpu")
    show_sample(console, pipe, DemoOptions())
    show_correction(console, pipe, pipe.examples.mistakes)
    drawn = console.export_svg(title="gidd demo")
    out.write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.S))  # fonts of the web
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
