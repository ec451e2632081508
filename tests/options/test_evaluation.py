"""Every option of `gidd eval` changes measurements or rows of the result, or is refused by name.

The manifest, which records all settings, is not compared.
"""

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.cases import once
from support.options import check_option
from support.small_grader import small_llama, small_tokenizer
from support.small_model import TEXT, write_model

from gidd.cli import main
from gidd.cli.eval.ppl import PerplexityCommand
from gidd.cli.eval.samples import SamplesCommand
from gidd.cli.eval.self_correction import CurveCommand
from gidd.cli.eval.tasks import TasksCommand

FEW = ["--num-samples", "3", "--length", "12", "--steps", "3", "--device", "cpu"]
SURFACES: dict[str, tuple[type, list[str]]] = {
    "ppl": (PerplexityCommand, ["model", "texts.jsonl", "--nodes", "2", "--device", "cpu"]),
    "samples": (SamplesCommand, ["model", *FEW]),
    "samples of a file": (SamplesCommand, ["texts.jsonl", "--grader", "grader"]),
    "self-correction": (CurveCommand, ["model", *FEW, "--forward-passes", "2,4"]),
    "tasks": (TasksCommand, ["model", "questions.jsonl", "--nodes", "2", "--device", "cpu"]),
}
"""The options of a command, and the words that are the default here."""

AWAY: dict[str, str] = {
    "executor": "--executor ray --max-se 1",
    "ray": "--ray.num-cpus 2",
    "length": "--length 14",
    "stride": "--stride 4",
    "end_of_text": "--end-of-text",
    "max_documents": "--max-documents 1",
    "nodes": "--nodes 3",
    "repeats": "--repeats 3",
    "grid": "--grid stratified",
    "seed": "--seed 5",
    "max_se": "--max-se 0.05 --max-forward-passes 200",
    "max_forward_passes": "--max-se 0.0001 --max-forward-passes 40",
    "num_samples": "--num-samples 1",
    "metric": "--metric repetition --metric.n 2",
    "grader": "--grader grader",
    "max_length": "--max-length 2",
    "grader_precision": "--grader-precision bf16",
    "grader_batch_size": "--grader-batch-size 0",
    "steps": "--steps 2",
    "timestep_spacing": "--timestep-spacing sine",
    "sampler": "--sampler renoise",
    "sampler_options": "--sampler psi --sampler.renoise 1.0",
    "block_length": "--block-length 3",
    "revise": "--revise 1 --final-corrector-steps 2",
    "temperature": "--temperature 0.1",
    "top_k": "--top-k 1",
    "top_p": "--top-p 0.1",
    "min_p": "--min-p 0.9",
    "epsilon_cutoff": "--epsilon-cutoff 0.5",
    "guidance_scale": "--guidance-scale 8",
    "negative_prompt": "--negative-prompt a",
    "final_corrector": "--final-corrector gibbs --final-corrector-steps 2",
    "final_corrector_steps": "--final-corrector-steps 3",
    "self_correction": "--self-correction.forward-passes 8",
    "temperatures": "--temperatures 0.1,2.0",
    "forward_passes": "--forward-passes 2,6",
    "limit": "--limit 1",
    "num_fewshot": "--num-fewshot 1",
    "rule": "--rule paper",
    "early_stop": "--no-early-stop",
    "confidence": "--no-early-stop --confidence 0.6",
    "min_repeats": "--no-early-stop --min-repeats 9",
    "tokenizer": "--tokenizer bytes",
}
"""Words that set an option away from its default, perhaps with what it needs to matter."""

NOT_OF_THE_RESULT = {"model", "source", "sources", "tasks", "out", "json", "device", "precision"}
NOT_OF_THE_RESULT |= {"by", "metric_options", "reference", "final_corrector_options"}
"""`by` is printed only, MAUVE is not installed, and options of components are set with them."""


def names_of(command: type) -> Iterator[str]:
    for field in fields(command):
        factory: Any = field.default_factory
        nested = factory() if callable(factory) else None
        if is_dataclass(nested) and field.name not in ("ray",):
            yield from (each.name for each in fields(nested))
        else:
            yield field.name


ELSEWHERE = {("samples of a file", "grader"), ("tasks", "early_stop")}
"""Set by default here; what stops early is counted in tests/evaluation/test_choices.py."""

CASES = [
    (surface, name)
    for surface, (command, _) in SURFACES.items()
    for name in dict.fromkeys(names_of(command))
    if name not in NOT_OF_THE_RESULT and (surface, name) not in ELSEWHERE
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluations")
    write_model(folder / "model", context=64)
    small_llama().save_pretrained(folder / "grader")
    small_tokenizer().save_pretrained(folder / "grader")
    (folder / "a.txt").write_text(TEXT)
    rows = [{"text": TEXT}, {"text": "Peace and plenty."}]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    question = {"question": "The sky is", "choices": ["blue.", "loud."], "answer": 0}
    (folder / "questions.jsonl").write_text(2 * (json.dumps(question) + "\n"))
    return folder


@pytest.fixture(scope="module")
def default(folder: Path) -> Any:
    return cache(lambda surface: evaluate(folder, surface, ""))


def evaluate(folder: Path, surface: str, words: str) -> Any:
    """Return measurements, rows and forward passes; a refusal has its message."""
    name, base = surface.partition(" of")[0].partition(",")[0], SURFACES[surface][1]
    out = folder / "out.json"
    out.unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        said: list[str] = []
        patch.setattr("gidd.cli.print_message", said.append)
        try:
            main(["eval", name, *base, *words.split(), "--out", "out.json"])
        except SystemExit:
            raise SystemExit("\n".join(said)) from None
    result = json.loads(out.read_text())
    return result["measurements"], result["rows"], result["manifest"].get("forward_passes")


@pytest.mark.slow
@pytest.mark.parametrize(("surface", "name"), once(CASES))
def test_an_option_changes_the_result_or_is_refused(request, folder, default, surface, name):
    words = AWAY[name]
    if surface == "tasks" and name == "rule":
        words += " --repeats 2"
    before = default(surface)
    check_option(
        request, f"gidd eval {surface}", name, before, lambda: evaluate(folder, surface, words)
    )
