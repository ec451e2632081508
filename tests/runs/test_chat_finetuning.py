"""Instruction tuning by one command: published networks with LoRA, exported, merged, reloaded."""

import io
import json
import shutil
import string
from pathlib import Path

import pytest

import gidd
from gidd.cli import main
from gidd.data import prepare
from gidd.data.tokenizers import byte_level, character_level
from gidd.pipeline import Pipeline

GOLDEN = Path(__file__).parents[1] / "golden"
SYMBOLS = string.ascii_lowercase + string.digits + "UA:\n +-*/=.,!?BCDEFGHIJKLMNOPQRSTVWXYZ"


def write_chats(path, count=200):
    lines = [{"prompt": f"add {k // 10} {k % 10}", "response": str(k)} for k in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(params=["llada", "dream", "llama"])
def network(request, tmp_path):
    """A tiny checkpoint of a published network, with a tokenizer of characters."""
    folder = tmp_path / request.param
    if request.param == "llama":
        transformers = pytest.importorskip("transformers", reason="needs the extra `hf`")
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
        sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 66}
        config = transformers.LlamaConfig(**sizes, max_position_embeddings=64)
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        mask_id = 66
    else:
        shutil.copytree(GOLDEN / "foreign" / request.param, folder)
        mask_id = json.loads((folder / "config.json").read_text())["mask_token_id"]
    tokenizer = character_level(SYMBOLS[: mask_id - 1])
    assert tokenizer.vocab.mask_id == mask_id
    tokenizer.save(folder)
    return folder


@pytest.mark.slow
def test_lora_on_chats_is_trained_exported_and_answers(network, tmp_path, monkeypatch, capsys):
    pytest.importorskip("peft", reason="needs the extra `hf`")
    monkeypatch.chdir(tmp_path)
    write_chats(tmp_path / "chats.jsonl")
    main([
        "train", "nano", "--init-from", str(network), "--lora.rank", "4", "--out", "run",
        "--data.sources", "chats.jsonl", "--data.format", "chat", "--data.length", "32",
        "--train.steps", "4", "--train.global-batch", "8", "--optim.warmup", "1",
        "--train.no-autocast", "--device", "cpu", "--train.evaluate-samples", "4", "--quiet",
    ])  # fmt: skip
    main(["export", "run", "--out", "model"])
    pipe = gidd.from_pretrained("model", device="cpu")
    assert pipe.source["data"] == {"format": "chat", "padding": "learned"}
    assert not any("lora" in name for name in pipe.denoiser.state_dict())
    answer = pipe.chat([{"role": "user", "content": "add 1 2"}], max_tokens=8, steps=4)
    assert len(answer.generation.filled[-1]) <= 8 and answer.messages[-1]["content"] == answer.text
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"add 1 2\n")))
    main(["chat", "model", "--max-tokens", "8", "--steps", "4", "--jsonl"])
    (line,) = capsys.readouterr().out.splitlines()
    roles = [message["role"] for message in json.loads(line)["messages"]]
    assert roles == ["user", "assistant"]


@pytest.mark.slow
def test_the_documented_way_from_json_lines_to_a_chat(tmp_path, monkeypatch):
    """The Python block of docs/finetuning.md, at tiny size."""
    monkeypatch.chdir(tmp_path)
    write_chats(tmp_path / "chats.jsonl")
    text = (GOLDEN.parents[1] / "docs" / "finetuning.md").read_text()
    (block,) = (part.split("```")[0] for part in text.split("```py\n")[1:])
    small = {"steps": 2, "global_batch": 4, "tokenizer": "bytes", "quiet": True, "device": "cpu"}
    sizes = {"width": 32, "num_layers": 1, "num_heads": 2}
    small |= {"evaluate_samples": 4, "model": gidd.component("backbone", "dit", **sizes)}
    train = gidd.train

    def tiny(*arguments, init_from, lora, **settings):
        return train(*arguments, **settings | small)

    chat = Pipeline.chat
    monkeypatch.setattr(gidd, "train", tiny)
    monkeypatch.setattr(
        Pipeline, "chat", lambda self, messages: chat(self, messages, steps=2, max_tokens=4)
    )
    exec(compile(block, "docs/finetuning.md", "exec"), {})
    assert gidd.from_pretrained("models/chat", device="cpu").tokenizer.kind == "bytes"


@pytest.mark.slow
def test_a_model_of_a_prepared_folder_of_chats_says_so(tmp_path):
    chats = write_chats(tmp_path / "chats.jsonl", 12)
    prepare([chats], byte_level(), tmp_path / "data", format="chat", validation=2, quiet=True)
    sizes = {"width": 32, "num_layers": 1, "num_heads": 2}
    settings = {"data": tmp_path / "data", "length": 40, "global_batch": 4, "evaluate_samples": 2}
    settings |= {"model": gidd.component("backbone", "dit", **sizes), "quiet": True}
    for steps in (2, 4):  # resumed
        pipe = gidd.train(tmp_path / "run", steps=steps, device="cpu", **settings)
        assert pipe.source["data"]["format"] == "chat"
