"""Print the lower bounds of the project's dependencies as pip constraints.

python tests/support/lowest_versions.py [EXTRA...] > lowest.txt
pip install -e ".[EXTRA,...]" -c lowest.txt
"""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
requirements = list(project["dependencies"])
for extra in sys.argv[1:]:
    requirements += project["optional-dependencies"][extra]
lowest: dict[str, tuple[int, ...]] = {}
for requirement in requirements:
    name, version = re.match(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)(?:;|$)", requirement).groups()
    numbers = tuple(map(int, version.split(".")))
    lowest[name] = max(lowest.get(name, numbers), numbers)  # what all that is asked for allows
for name, numbers in sorted(lowest.items()):
    print(f"{name}=={'.'.join(map(str, numbers))}")
