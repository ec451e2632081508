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
for requirement in sorted(set(requirements)):
    name, version = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)", requirement).groups()
    print(f"{name}=={version}")
