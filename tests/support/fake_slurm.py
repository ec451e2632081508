"""A stand-in for Slurm: runs the submitted scripts on this machine, one after the other."""

import sys
from pathlib import Path

SBATCH = """\
#!{python}
# Runs a batch script as Slurm would, at once: `sbatch [--export=...] [--dependency=...] SCRIPT`.
import json, os, re, subprocess, sys

folder, (*options, script) = os.path.dirname(__file__), sys.argv[1:]
if os.path.exists(folder + "/refuse"):
    sys.exit("sbatch: error: invalid partition specified")
jobs_file = folder + "/jobs.json"
jobs = json.load(open(jobs_file)) if os.path.exists(jobs_file) else []
text = open(script).read()
asked = dict(re.findall("^#SBATCH --([a-z-]+)=(.*)$", text, flags=re.M))
given = dict(option.lstrip("-").split("=", 1) for option in options)
last = int(re.fullmatch("0-([0-9]+)(?:%[0-9]+)?", asked["array"])[1])
needed = re.findall("afterok:([0-9]+)", asked.get("dependency", "") + given.get("dependency", ""))
codes = []
if all(jobs[int(number) - 1]["codes"].count(0) == len(jobs[int(number) - 1]["codes"])
       for number in needed):
    for task in range(last + 1):
        extra = dict(word.split("=", 1) for word in given.get("export", "").split(",")[1:])
        environment = os.environ | extra | {{
            "SLURM_ARRAY_TASK_ID": str(task), "SLURM_NODELIST": "node1"}}
        output = asked["output"].replace("%A", str(len(jobs) + 1)).replace("%a", str(task))
        with open(output, "w") as file:
            done = subprocess.run(["bash", script], env=environment, stdout=file, stderr=file)
        codes.append(done.returncode)
jobs.append({{"asked": asked, "given": given, "codes": codes}})
json.dump(jobs, open(jobs_file, "w"))
print("Submitted batch job", len(jobs))
"""
SCONTROL = "#!/bin/bash\necho node1\n"
SQUEUE = '#!/bin/bash\ncat "$(dirname "$0")/queue" 2>/dev/null || true\n'


def write_slurm(folder: Path) -> None:
    """Write the commands of Slurm that are used into a folder."""
    scripts = {"sbatch": SBATCH.format(python=sys.executable), "scontrol": SCONTROL}
    for name, text in (scripts | {"squeue": SQUEUE}).items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
