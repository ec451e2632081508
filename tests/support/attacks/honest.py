"""The honest folders that attacks change, and the commands that read them."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from gidd.data import tokenizers
from gidd.diffusion.schedules import HybridSchedule
from gidd.models import save
from support.attacks.foreign import write_gemma, write_sharded
from support.reference_layout import export_reference
from support.sandbox import Result, Sandbox
from support.small_model import TEXT, random_denoiser

TRAIN = (
    ["train", "nano", "--data.length", "16", "--train.steps", "2", "--train.global-batch", "4"]
    + ["--train.evaluate-samples", "4", "--train.generate-samples", "1", "--backbone.width", "32"]
    + ["--backbone.num-layers", "2", "--backbone.num-heads", "2", "--backbone.time-width", "16"]
)
LORA = TRAIN[:10] + ["--init-from", "model", "--lora.rank", "2", "--data.folder", "data"]
LETTER = "I embrace with great satisfaction the opportunity, eeeeeeeeeeeeeeeeeeeeeeeeeeeee; aaaa."
COMMANDS: dict[str, list[list[str]]] = {
    "model": [
        ["sample", "model", "--length", "8", "--steps", "2", "--jsonl"],
        ["correct", "--text", LETTER, "--model", "model"],
    ],
    "published": [["sample", "published", "--steps", "2"]],
    "sharded": [["sample", "sharded", "--length", "8", "--steps", "2"]],
    "gemma": [["sample", "gemma", "--prompt", "We", "--length", "12", "--steps", "2"]],
    "tokenizer": [
        ["correct", "--text", LETTER, "--model", "tokenizer"],
        ["sample", "tokenizer", "--length", "8", "--steps", "2", "--prompt", "an"],
    ],
    "sources": [["data", "prepare", "sources", "--tokenizer", "model", "--out", "prepared"]],
    "data": [
        ["data", "show", "data"],
        ["data", "verify", "data"],
        [*TRAIN, "--data.folder", "data", "--out", "new"],
    ],
    "chats": [
        ["data", "prepare", "chats", "--format", "chat", "--tokenizer", "model", "--out", "answers"]
    ],
    "lora": [["export", "lora", "--out", "exported", "--overwrite"]],
    "run": [
        ["export", "run", "--out", "exported", "--overwrite"],
        [*TRAIN, "--train.steps", "3", "--data.folder", "data", "--out", "run"],
        ["plot", "run"],
    ],
}
"""Commands by what they read: the name of the folder."""

_EXPORT, _TRAIN, _PLOT = COMMANDS["run"]
_READERS = {"run ": [_EXPORT], "log ": [_PLOT, _TRAIN]}


def readers(kind: str, name: str) -> list[list[str]]:
    """Return the commands that interpret what the attack of this name damages.

    run.yaml of a checkpoint is for `export` alone, and the log is not read by it; `plot` reads
    nothing but the log.
    """
    if kind != "run":
        return COMMANDS[kind]
    return _READERS.get(name[:4], [_EXPORT, _TRAIN])


@dataclass(frozen=True)
class Honest:
    """Honest folders, and what the commands need for them."""

    folder: Path
    sandbox: Sandbox
    peaks: dict[str, int]
    """Peak memory of a command, by its first words, in bytes."""

    def copy(self, kind: str, to: Path) -> Path:
        """Copy the folders that the commands of a kind need; return the one to attack."""
        needed = {"run": ("data",), "sources": ("model",), "chats": ("model",)}.get(kind, ())
        for name in (kind, *needed):
            shutil.copytree(self.folder / name, to / name)
        return to / kind

    def attack(self, words: list[str], folder: Path) -> tuple[Result, list[str]]:
        """Run a command on a hostile folder; return what it did and what it must not do."""
        result = self.sandbox.run(words, folder)
        found = result.violations(self.peaks[" ".join(words[:2])])
        if (folder / "executed").exists():
            found.append("executed a payload")
        return result, found


def build(folder: Path, sandbox: Sandbox) -> Honest:
    """Write one folder of each kind, and run every command on it."""
    tokenizer = tokenizers.train_tokenizer([TEXT], 300)
    denoiser = random_denoiser(tokenizer.vocab)
    for name in ("model", "tokenizer"):
        save(folder / name, denoiser, HybridSchedule(tokenizer.vocab, 0.2), {"steps": 0})
        tokenizer.save(folder / name)
    export_reference(folder / "published", denoiser, 0.2)
    tokenizer.save(folder / "published")
    write_sharded(folder / "sharded")
    write_gemma(folder / "gemma")
    (folder / "chats").mkdir()
    (folder / "chats" / "chats.jsonl").write_text('{"prompt": "a", "response": "b"}\n' * 20)
    (folder / "sources").mkdir()
    (folder / "sources" / "a.txt").write_text(TEXT)
    (folder / "lines.jsonl").write_text('{"text": "one document"}\n' * 20)
    prepare = ["data", "prepare", "lines.jsonl", "--tokenizer", "model"]
    sandbox.run(
        [*prepare, "--out", "data", "--validation", "4", "--tasks", "2"], folder, warm_up=True
    )
    sandbox.run([*TRAIN, "--data.folder", "data", "--out", "run"], folder, warm_up=True)
    sandbox.run([*LORA, "--out", "lora"], folder, warm_up=True)
    peaks: dict[str, int] = {}
    for words in (words for commands in COMMANDS.values() for words in commands):
        result = sandbox.run(words, folder, warm_up=True)
        assert result.violations(result.peak) == [], f"gidd {' '.join(words)}: {result.text}"
        assert result.status == 0, f"gidd {' '.join(words)}: {result.text}"
        peaks[" ".join(words[:2])] = result.peak
    for name in ("prepared", "answers", "exported"):
        shutil.rmtree(folder / name)  # the honest folders are as they were
    return Honest(folder, sandbox, peaks)
