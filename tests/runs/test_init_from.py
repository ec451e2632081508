"""Fine-tuning: runs that start from the weights of another model."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.ranks import run_ranks
from support.training_runs import final_tensors, losses, reported, speeches, tiny_run, train_here
from tokenizers import Tokenizer as InnerTokenizer, models, pre_tokenizers

import gidd
from gidd.cli import main
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import Tokenizer, character_level
from gidd.errors import CheckpointError, ConfigError, DataError
from gidd.models.hub import load_network
from gidd.runs.export import export
from gidd.runs.fit import fit
from gidd.runs.init_from import with_source
from gidd.runs.presets import hybrid
from gidd.training.build import build_state
from gidd.training.checkpoints.folder import read_record
from gidd.training.config import Diffusion
from gidd.training.parallel import FSDP
from gidd.training.world import open_world

GOLDEN = Path(__file__).parents[1] / "golden"
TEXT = "I embrace with great satisfaction the opportunity which now presents itself. " * 40


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return speeches(tmp_path_factory.mktemp("data"), documents=12)


@pytest.fixture(scope="module")
def source(tmp_path_factory, data):
    """A model of a few steps with masks only."""
    out = tmp_path_factory.mktemp("source")
    run = replace(tiny_run(data, steps=4), objective=Diffusion(noise=hybrid(0.0)))
    train_here(run, out)
    with open_world("cpu", 600) as world:
        export(out, out / "model", world)
    return out / "model"


def tuned(data, source, **changes):
    run = tiny_run(data, steps=6, save_every=3, **changes)
    # another size: the network is that of the source
    return replace(run, backbone=run.backbone.changed(width=64), init_from=str(source))


def initial(run, out, vocab):
    """The weights of a run before its first step, by their names in the network."""
    with open_world("cpu", 600) as world:
        run, source = with_source(run, out)
        state = build_state(run, vocab, world)
        notes = source.initialize(state, Tokenizer.load(run.data.folder))
        network = state.model.network
        return {name: value.detach().clone() for name, value in network.named_parameters()}, notes


@pytest.mark.slow
def test_a_run_starts_from_the_weights_and_network_of_its_source(data, source, tmp_path):
    found, notes = initial(tuned(data, source), tmp_path, Tokenizer.load(data).vocab)
    weights = gidd.from_pretrained(source).denoiser.backbone.state_dict()
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in found)
    assert str(source) in notes[0]


@pytest.mark.slow
def test_the_source_is_in_every_checkpoint_and_in_the_exported_model(data, source, tmp_path):
    run = tuned(data, source, keep=9)
    train_here(run, tmp_path)
    expected = {
        "name": str(source),
        "sha256": json.loads((source / "gidd.json").read_text())["files"]["model.safetensors"],
    }
    folders = sorted((tmp_path / "checkpoints").glob("step-*"))
    assert len(folders) == 2
    for folder in folders:
        assert read_record(folder)["init_from"] == expected
    with open_world("cpu", 600) as world:
        export(tmp_path, tmp_path / "model", world)
    assert (
        json.loads((tmp_path / "model" / "gidd.json").read_text())["training"]["init_from"]
        == expected
    )
    # the noise is that of the run, not that of the source
    assert gidd.from_pretrained(tmp_path / "model").schedule.p_uniform == 0.1


def test_the_context_of_the_source_is_kept(data, source, tmp_path):
    """Trained on shorter texts, and after a run is resumed without its source."""
    run = tuned(data, source)
    run = replace(run, data=replace(run.data, length=8))
    train_here(replace(run, train=replace(run.train, steps=3)), tmp_path)
    train_here(replace(run, init_from=str(source)), tmp_path)
    with open_world("cpu", 600) as world:
        export(tmp_path, tmp_path / "model", world)
    assert gidd.from_pretrained(tmp_path / "model").context == 16


@pytest.mark.slow
def test_a_sharded_run_starts_from_the_same_weights(data, source, tmp_path):
    run = tuned(data, source)
    run_ranks(train_here, 1, run, tmp_path / "alone")
    run_ranks(train_here, 2, run, tmp_path / "sharded", FSDP())
    torch.testing.assert_close(
        losses(tmp_path / "sharded"), losses(tmp_path / "alone"), rtol=1e-4, atol=0
    )


@pytest.mark.slow
def test_a_run_resumes_bit_for_bit_without_its_source(data, source, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(source, moved)
    run = tuned(data, moved)
    train_here(run, tmp_path / "undisturbed")
    part = replace(run, train=replace(run.train, steps=3))
    train_here(part, tmp_path / "resumed")
    shutil.rmtree(moved)
    train_here(run, tmp_path / "resumed")
    assert reported(tmp_path / "resumed")[-1] == reported(tmp_path / "undisturbed")[-1]
    ours, theirs = (
        final_tensors(with_source(run, tmp_path / name)[0], tmp_path / name)
        for name in ("resumed", "undisturbed")
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_data_of_another_tokenizer_is_refused(source, tmp_path):
    other = speeches(tmp_path / "data", vocab_size=300, documents=6)
    with pytest.raises(DataError, match=r"300 tokens.*--tokenizer .*model"):
        train_here(tuned(other, source), tmp_path / "out")


@pytest.mark.parametrize("place", ["local_model", "_download"])
def test_a_source_by_name_has_its_tokenizer_too(source, tmp_path, monkeypatch, place):
    """Of an installed distribution, or of the Hugging Face hub."""
    monkeypatch.setattr(f"gidd.models.hub.{place}", lambda name: source)
    run, _ = with_source(tuned(None, "somebody/model"), tmp_path)
    assert Path(run.data.tokenizer) == source
    other = speeches(tmp_path / "data", documents=6)
    assert Tokenizer.load(other).vocab == Tokenizer.load(source).vocab
    with pytest.raises(DataError, match="not that of somebody/model"):
        train_here(tuned(other, "somebody/model"), tmp_path / "out")


@pytest.mark.slow
def test_sources_are_prepared_with_the_tokenizer_of_the_source(source, tmp_path):
    (tmp_path / "my.txt").write_text(TEXT)
    run = tuned(None, source)
    run = replace(run, data=replace(run.data, sources=(str(tmp_path / "my.txt"),), validation=0.0))
    train_here(run, tmp_path / "out")
    used, own = Tokenizer.load(tmp_path / "out" / "data"), Tokenizer.load(source)
    assert (used.fingerprint, used.vocab) == (own.fingerprint, own.vocab)


def test_a_folder_without_a_model_is_refused(data, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="gidd.json"):
        train_here(tuned(data, tmp_path / "empty"), tmp_path / "out")


def words_tokenizer(words):
    """A tokenizer without a mask, as a causal language model has one."""
    vocabulary = {word: i for i, word in enumerate(["<|endoftext|>", "[UNK]", *words])}
    inner = InnerTokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return inner


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A causal Llama as `save_pretrained` writes it, and data of its tokenizer."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("llama")
    inner = words_tokenizer(sorted(set(TEXT.split())))
    size = inner.get_vocab_size()
    config = transformers.LlamaConfig(
        vocab_size=size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=64, bos_token_id=None, eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    network = transformers.LlamaForCausalLM(config)
    network.save_pretrained(folder / "network")
    (folder / "text.txt").write_text(TEXT)
    tokenizer = Tokenizer(inner)
    prepare(folder / "text.txt", tokenizer, folder / "data", quiet=True)
    return folder / "network", folder / "data", network, tokenizer


def test_a_causal_network_gets_a_mask_whose_rows_are_the_mean(llama, tmp_path):
    folder, data, network, tokenizer = llama
    size = network.config.vocab_size
    assert tokenizer.vocab.size > size  # the mask was added
    found, notes = initial(tuned(data, folder), tmp_path, tokenizer.vocab)
    table = network.get_input_embeddings().weight.detach()
    (name,) = [name for name in found if "embed_tokens" in name]
    assert torch.equal(found[name][:size], table)
    torch.testing.assert_close(found[name][size:], table.mean(0).expand_as(found[name][size:]))
    head = network.get_output_embeddings().weight.detach()
    assert torch.equal(found["head.weight"][:size], head)
    assert "new to the model" in notes[1]
    run, _ = with_source(tuned(data, folder), tmp_path)
    assert run.backbone.name == "llama-bidirectional"
    assert run.backbone.options["width"] == 32
    assert run.backbone.options["start_id"] == 0  # outputs go on predicting the next token


def test_attention_of_a_causal_network_opens_in_some_steps(llama, tmp_path):
    """As a function of the step: a resumed run has the same weights. It is kept by the model."""
    folder, data, _, _ = llama
    run = tuned(data, folder)
    run = replace(run, objective=replace(run.objective, attention_warmup=4))
    fractions = []

    def note(state, metrics):
        fractions.append(state.model.network.visible_future)

    with open_world("cpu", 600) as world:
        fit(run, tmp_path / "whole", world, quiet=True, callbacks=[note])
    assert fractions == [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0]  # the first is the dry run
    run = replace(run, train=replace(run.train, save_every=1))

    def stop(state, metrics):
        if state.step == 3:
            raise RuntimeError("stopped")

    with open_world("cpu", 600) as world, pytest.raises(RuntimeError, match="stopped"):
        fit(run, tmp_path / "resumed", world, quiet=True, callbacks=[stop])
    train_here(run, tmp_path / "resumed")
    causal, _ = with_source(run, tmp_path / "whole")
    whole, resumed = (final_tensors(causal, tmp_path / name) for name in ("whole", "resumed"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    with open_world("cpu", 600) as world:
        export(tmp_path / "whole", tmp_path / "model", world)
    again, _ = with_source(tuned(data, tmp_path / "model"), tmp_path / "again")
    assert again.backbone.options["start_id"] == 0
    with pytest.raises(ConfigError, match="attention_warmup must be 0"):
        train_here(replace(run, init_from=None), tmp_path / "dit")


@pytest.mark.slow
@pytest.mark.usefixtures("forked_traces")
@pytest.mark.parametrize("command", ["train", "plan"])
def test_a_dry_run_and_a_plan_have_the_network_of_the_source(command, llama, tmp_path, capsys):
    folder, data, _, _ = llama
    words = ["nano", "--init-from", str(folder), "--data.folder", str(data)]
    own = {
        "train": ["--dry-run", "--out", str(tmp_path)],
        "plan": ["--device", "h100", "--json"],
    }[command]
    main([command, *words, *own])
    shown = capsys.readouterr().out
    _, source = with_source(tuned(data, folder), tmp_path)
    added = Tokenizer.load(data).vocab.size - source.source.num_tokens
    total = sum(p.numel() for p in source.source.network.parameters()) + 2 * 32 * added
    assert (f"{total:,}" if command == "train" else f'"num_parameters": {total}') in shown


@pytest.mark.slow
def test_a_causal_network_trains_and_generates(llama, tmp_path):
    folder, data, _, _ = llama
    train_here(tuned(data, folder), tmp_path)
    with open_world("cpu", 600) as world:
        export(tmp_path, tmp_path / "model", world)
    pipe = gidd.from_pretrained(tmp_path / "model", device="cpu")
    assert set(pipe.generate(length=8, steps=4)[0].text.split()) <= set(TEXT.split()) | {"[UNK]"}


@pytest.mark.slow
@pytest.mark.parametrize(("project", "symbols"), [("mdlm", 63), ("sedd_absorb", 63), ("duo", 64)])
def test_checkpoints_of_other_projects_are_continued(project, symbols, tmp_path):
    """The network keeps its own time input; Duo, which has no mask, gets one."""
    folder = GOLDEN / "foreign" / project
    alphabet = "".join(map(chr, range(0x4E00, 0x4E00 + symbols)))
    (tmp_path / "text.txt").write_text(alphabet * 20)
    tokenizer = character_level(alphabet)
    prepare(tmp_path / "text.txt", tokenizer, tmp_path / "data", quiet=True)
    run = tuned(tmp_path / "data", folder)
    train_here(run, tmp_path / "out")
    assert len(losses(tmp_path / "out")) == 6
    with open_world("cpu", 600) as world:
        export(tmp_path / "out", tmp_path / "model", world)
    pipe = gidd.from_pretrained(tmp_path / "model", device="cpu")
    theirs, ours = load_network(folder).network.config, pipe.denoiser.backbone.config
    assert (type(ours), ours.time) == (type(theirs), theirs.time)
    assert pipe.schedule.vocab.mask_id == symbols + 1
    assert pipe.generate(length=8, steps=2)


@pytest.fixture(params=["llada", "dream"])
def masked_transformer(request, tmp_path):
    """A checkpoint of LLaDA or Dream with a tokenizer of its mask, and texts as JSON lines."""
    folder = shutil.copytree(GOLDEN / "foreign" / request.param, tmp_path / request.param)
    mask_id = json.loads((folder / "config.json").read_text())["mask_token_id"]
    alphabet = "".join(map(chr, range(0x4E00, 0x4E00 + mask_id - 1)))
    tokenizer = character_level(alphabet)
    assert tokenizer.vocab.mask_id == mask_id
    tokenizer.save(folder)
    lines = [{"text": (alphabet[k:] + alphabet[:k])[:40]} for k in range(40)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder, tmp_path / "x.jsonl"


@pytest.mark.slow
def test_llada_and_dream_train_with_lora_and_are_exported_merged(
    masked_transformer, tmp_path, monkeypatch
):
    pytest.importorskip("peft", reason="needs the extra `hf`")
    monkeypatch.chdir(tmp_path)
    folder, texts = masked_transformer
    main([
        "train", "nano", "--init-from", str(folder), "--lora.rank", "4", "--out", "run",
        "--data.sources", str(texts), "--data.length", "32", "--train.steps", "4",
        "--train.global-batch", "8", "--optim.warmup", "1", "--train.no-autocast",
        "--device", "cpu", "--train.evaluate-samples", "4", "--quiet",
    ])  # fmt: skip
    main(["export", "run", "--out", "model"])
    before = gidd.from_pretrained(folder, device="cpu").denoiser.backbone
    pipe = gidd.from_pretrained("model", device="cpu")
    after = pipe.denoiser.backbone
    size = pipe.schedule.vocab.size
    assert after.config == replace(before.config, vocab_size=size, predicts_first=True)
    theirs, ours = before.state_dict(), after.state_dict()
    assert ours.keys() == theirs.keys()
    changed = {
        name for name in ours if "proj" in name and not torch.equal(ours[name], theirs[name])
    }
    assert changed == {name for name in ours if "proj" in name and name.endswith("weight")}
    [sample] = pipe.generate(length=8, steps=3)  # no prompt: Dream has learnt the first token
    assert sample.text
    assert pipe.score("一丁", nodes=2, repeats=2).nelbo > 0


def test_p_uniform_grows_during_training_and_evaluations_have_all_of_it(data, source):
    run = tuned(data, source)
    objective = Diffusion(noise=hybrid(0.2), p_uniform_warmup=64)
    run = replace(run, objective=objective, init_from=None)
    with open_world("cpu", 600) as world:
        made = build_state(run, Tokenizer.load(data).vocab, world).corrupt
    grown = [made._noise_at(step)[0].p_uniform for step in range(66)]
    assert grown[0] == 0
    assert grown == sorted(grown)
    assert grown[64:] == [0.2, 0.2]
    assert grown[32] == pytest.approx(0.1)
    assert all(made._noise_at(step)[1].schedule is made._noise_at(step)[0] for step in (0, 40))
    assert made.schedule.p_uniform == 0.2  # of evaluations


def test_a_network_with_other_shapes_is_refused(llama, tmp_path):
    """A context longer than that of the source, whose positions are learnt."""
    folder, _, _, _ = llama
    assert load_network(folder).network.config.max_length == 64
    run = tuned(llama[1], folder)
    run = replace(run, data=replace(run.data, length=65))
    with pytest.raises(ConfigError, match="max_position_embeddings = 64"):
        train_here(run, tmp_path)
