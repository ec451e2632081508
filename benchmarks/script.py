"""Options of all scripts of this folder, and sizes that `--quick` replaces by tiny ones.

python benchmarks/NAME.py --quick     # ends in seconds, prints the same keys; figures mean nothing
"""

from __future__ import annotations

import argparse
import sys
from typing import TypeVar

T = TypeVar("T")

IS_QUICK = "--quick" in sys.argv


def size(full: T, quick: T) -> T:
    """Return the size to measure at: `quick` with `--quick`, else `full`."""
    return quick if IS_QUICK else full


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with `--json` and `--quick`; the help text is the docstring of the script."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    return parser
