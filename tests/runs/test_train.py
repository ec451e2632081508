"""`gidd.train` and `gidd.diffusion_loss`: runs from Python."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import pytest
import torch
import torch.distributed as dist
from support.pretended_device import pretended_cuda
from support.registrations import temporary_registrations
from support.training_runs import speeches
from torch import nn

import gidd
from gidd.cli.run_options import parse_run
from gidd.cli.train import TrainOptions
from gidd.data.corpora import Corpus
from gidd.data.corpora.formats import find_documents
from gidd.data.manifest import DataManifest
from gidd.data.tokenizers import Tokenizer
from gidd.diffusion import (
    HybridSchedule,
    LinearAmount,
    MaskedSchedule,
    MixtureComponent,
    MixtureSchedule,
    TightWeighting,
    mask_noise,
)
from gidd.diffusion.loss.batch import require_clean
from gidd.diffusion.schedules import ConstantMixing
from gidd.errors import CheckpointError, ConfigError, DataError
from gidd.models import Denoiser, DiTConfig
from gidd.runs.export import export
from gidd.training.reporting.report import Report
from gidd.training.world import open_world

SMALL = {"length": 16, "global_batch": 4, "evaluate_samples": 4, "generate_samples": 0}
TINY = gidd.component("backbone", "dit", width=16, num_layers=1, num_heads=2, time_width=8)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return speeches(tmp_path_factory.mktemp("data"), documents=8)


@pytest.fixture(scope="module")
def vocab(data):
    return Tokenizer.load(data).vocab


def train(out, data, **changes):
    settings = {"model": TINY, "steps": 3, "quiet": True, "device": "cpu"} | SMALL | changes
    if not isinstance(data, Path | Corpus):  # batches are not evaluated
        del settings["evaluate_samples"]
    return gidd.train(out, data=data, **settings)


def log(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


class Network(nn.Module):
    """Nothing but what a denoiser needs."""

    def __init__(self, size, width=8):
        super().__init__()
        self.embedding = nn.Embedding(size, width)
        self.head = nn.Linear(width, size)

    def hidden(self, z, t):
        return self.embedding(z) + t[:, None, None]


@pytest.mark.slow
def test_a_run_by_names_returns_a_pipeline_that_can_be_saved(data, tmp_path):
    pipe = train(tmp_path / "run", data, schedule="uniform", weighting="tight", seed=3)
    assert type(pipe.schedule).__name__ == "UniformSchedule"
    assert pipe.context == 16
    pipe.save(tmp_path / "model")
    again = gidd.from_pretrained(tmp_path / "model", device="cpu")
    ours, theirs = (p.generate(length=8, steps=4)[0].tokens for p in (pipe, again))
    assert ours == theirs


@pytest.mark.slow
def test_the_same_call_resumes(data, tmp_path):
    train(tmp_path, data, steps=2, save_every=1)
    pipe = train(tmp_path, data, steps=4, save_every=1, warmup=0)
    assert pipe.source["steps"] == 4
    assert [line["step"] for line in log(tmp_path) if line["kind"] == "evaluation"][-1] == 4


def test_a_run_with_more_steps_and_the_folder_of_a_run_as_a_model_are_refused(data, tmp_path):
    train(tmp_path, data, steps=2)
    with pytest.raises(ConfigError, match=r"train.steps must be at least 2, .* got 1"):
        train(tmp_path, data, steps=1)
    with pytest.raises(CheckpointError, match=f"Export it with `gidd export {tmp_path}"):
        train(tmp_path / "tuned", data, model=None, init_from=tmp_path)


@pytest.mark.parametrize("given", ["config", "part", "instance"])
def test_a_model_can_be_a_config_a_part_or_a_module(given, data, vocab, tmp_path):
    config = DiTConfig(vocab_size=vocab.size, max_length=16, **TINY.options)
    model = {"config": config, "part": TINY, "instance": config.build()}[given]
    pipe = train(tmp_path, data, model=model)
    assert pipe.denoiser.backbone.config == config
    pipe.save(tmp_path / "model")


def test_the_weights_of_a_module_are_the_initial_ones(data, vocab, tmp_path):
    network = Network(vocab.size)
    before = network.embedding.weight.detach().clone()
    pipe = train(tmp_path, data, model=network, steps=1, learning_rate=0.0, warmup=0)
    assert torch.equal(pipe.denoiser.backbone.embedding.weight, before)


def test_random_numbers_after_a_run_are_those_of_the_callers_seed(data, vocab, tmp_path):
    """Dropout and initial weights seed torch's global generator."""
    state = torch.manual_seed(5).get_state()
    train(tmp_path / "run", data, model=TINY.changed(dropout=0.1), steps=1)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(DataError):
        train(tmp_path / "fails", batches(1), tokenizer=Tokenizer.load(data), steps=2)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_run_uses_the_open_process_group_and_leaves_it_open(data, tmp_path):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        train(tmp_path, data, steps=1)
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_a_module_that_is_not_registered_trains_resumes_and_says_why_it_is_not_saved(
    data, vocab, tmp_path
):
    train(tmp_path, data, model=Network(vocab.size), steps=2)
    pipe = train(tmp_path, data, model=Network(vocab.size), steps=3, warmup=0)
    assert pipe.source["steps"] == 3
    with pytest.raises(ConfigError, match=r"Network cannot be saved.*gidd.register"):
        pipe.save(tmp_path / "model")


def test_noise_and_weighting_can_be_objects(data, vocab, tmp_path):
    schedule = HybridSchedule(vocab, p_uniform=0.3)
    pipe = train(tmp_path, data, schedule=schedule, weighting=TightWeighting(schedule, w_max=2.0))
    assert pipe.schedule == schedule
    pipe.save(tmp_path / "model")
    record = json.loads((tmp_path / "model" / "gidd.json").read_text())
    assert record["schedule"] == {"kind": "hybrid", "p_uniform": 0.3, "gamma": 1.0}


@pytest.mark.slow
def test_the_returned_pipeline_is_the_exported_model(data, tmp_path):
    """Every field but the name and SHA-256 of the source, and every file that `save` writes."""
    settings = {"objective": {"eps": 1e-2}, "lora": 2, "ema_decay": 0.9}
    ours = train(tmp_path / "run", data, **settings)
    with open_world("cpu") as world:
        export(tmp_path / "run", tmp_path / "exported", world)
    theirs = gidd.from_pretrained(tmp_path / "exported", device="cpu")
    assert ours.times == theirs.times == (0.01, 0.99)
    assert ours.source["steps"] == theirs.source["steps"] == 3
    names = vars(ours).keys() - {"source", "denoiser", "session", "network", "_network"}
    names -= {"tokenizer", "decoder", "automaton"}
    assert {name: getattr(ours, name) for name in names} == {
        name: getattr(theirs, name) for name in names
    }
    assert ours.tokenizer.fingerprint == theirs.tokenizer.fingerprint
    for pipe, folder in ((ours, "ours"), (theirs, "theirs")):
        pipe.source = {}
        pipe.save(tmp_path / folder)
    for file in (tmp_path / "ours").iterdir():
        assert file.read_bytes() == (tmp_path / "theirs" / file.name).read_bytes(), file.name


def test_ambiguous_settings_are_refused_and_can_be_qualified(data, tmp_path):
    with pytest.raises(ConfigError, match=r"optim={'eps': 1e-08} or objective={'eps': 1e-08}"):
        train(tmp_path, data, eps=1e-8)
    train(tmp_path, data, optim={"eps": 1e-7}, objective={"eps": 1e-3}, lora={"rank": 3}, steps=1)
    run = recorded_run(tmp_path, 1)
    assert (run["optim"]["eps"], run["objective"]["eps"], run["lora"]["rank"]) == (1e-7, 1e-3, 3)
    with pytest.raises(ConfigError, match=r"optim has no setting 'epps'. Did you mean eps"):
        train(tmp_path, data, optim={"epps": 1e-7})
    with pytest.raises(ConfigError, match=r"no setting 'batch_size'. Did you mean global_batch"):
        train(tmp_path, data, batch_size=8)


def recorded_run(out, step):
    path = out / "checkpoints" / f"step-{step:09d}" / "record.json"
    return json.loads(path.read_text())["run"]


TORCHRUN = """
import os, sys, gidd
from pathlib import Path
from gidd.data.corpora import Corpus
from gidd.data.corpora.formats import find_documents

class Texts(Corpus):
    name, description = "texts", "a file"
    def documents(self):
        return find_documents(Path(sys.argv[1]) / "a.txt")

pipe = gidd.train(
    sys.argv[1] + "/run", data=Texts(), tokenizer=300, steps=2, length=8, global_batch=2,
    evaluate_samples=2, generate_samples=0, quiet=True, device="cpu", parallel=sys.argv[2],
    model=gidd.component("backbone", "dit", width=16, num_layers=1, num_heads=2, time_width=8),
)
found = f"steps {pipe.source['steps']} {pipe.generate(length=4, steps=2)[0].tokens}"
Path(sys.argv[1], "rank" + os.environ["RANK"]).write_text(found)
"""


@pytest.mark.long
@pytest.mark.parametrize("parallel", ["fsdp", "ddp"])
def test_a_corpus_object_is_prepared_once_under_torchrun(parallel, tmp_path):
    (tmp_path / "a.txt").write_text("I embrace with great satisfaction. " * 50)
    script = tmp_path / "script.py"
    script.write_text(TORCHRUN)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words = ["--nproc-per-node", "2", str(script), str(tmp_path), parallel]
    done = subprocess.run(
        [*torchrun, *words], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = ((tmp_path / f"rank{rank}").read_text() for rank in range(2))
    assert first == second and first.startswith("steps 2 ")


@dataclass(frozen=True)
class Vowels(ConstantMixing):
    def pi(self, like):
        noise = torch.zeros_like(mask_noise(self.vocab, like))
        noise[[0, 4, 8, 14, 20]] = 0.2
        return noise


def test_own_noise_that_names_tokens_trains_by_its_name_with_weights_that_fit(data, tmp_path):
    with temporary_registrations():
        gidd.register("schedule", "vowels-of-a-test")(Vowels)
        pipe = train(tmp_path, data, schedule="vowels-of-a-test", steps=1)
    assert isinstance(pipe.schedule, Vowels)
    assert recorded_run(tmp_path, 1)["objective"]["weighting"] == {"kind": "tight", "w_max": 1.0}
    run = parse_run(TrainOptions, ["nano", "--noise", "uniform"], "gidd train", "")[1].run
    assert run.objective.weighting == gidd.component("weighting", "tight")


def test_a_mixture_trains_and_is_saved_with_its_distributions(data, vocab, tmp_path):
    schedule = MixtureSchedule(vocab, (MixtureComponent(mask_noise(vocab), LinearAmount()),))
    pipe = train(tmp_path, data, schedule=schedule, weighting="tight")
    pipe.save(tmp_path / "model")
    loaded = gidd.from_pretrained(tmp_path / "model", device="cpu").schedule
    t = torch.tensor([0.3])
    assert torch.equal(loaded.beta_pi(t), schedule.beta_pi(t))


def test_noise_of_another_vocabulary_is_refused(data, tmp_path):
    schedule = HybridSchedule(gidd.Vocab(9, mask_id=8))
    with pytest.raises(ConfigError, match=r"schedule.vocab must be .*size=512.*got .*size=9"):
        train(tmp_path, data, schedule=schedule)


def batches(number, length=16):
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 500, (4, length), generator=generator) for _ in range(number)]


@pytest.mark.slow
def test_batches_of_tokens_are_data(data, tmp_path):
    tokenizer = Tokenizer.load(data)
    pipe = train(tmp_path / "whole", iter(batches(4)), tokenizer=tokenizer, steps=4)
    assert pipe.source["steps"] == 4
    train(tmp_path / "parts", batches(4), tokenizer=tokenizer, steps=4, save_every=2)
    assert [line.get("loss") for line in log(tmp_path / "parts")] == [
        line.get("loss") for line in log(tmp_path / "whole")
    ]


@pytest.mark.slow
def test_a_resumed_run_skips_the_batches_it_has_seen(data, tmp_path):
    tokenizer, same = Tokenizer.load(data), {"warmup": 0, "report_every": 1}
    train(tmp_path / "whole", batches(4), tokenizer=tokenizer, steps=4, **same)
    train(tmp_path / "parts", batches(4), tokenizer=tokenizer, steps=2, **same)
    train(tmp_path / "parts", batches(4), tokenizer=tokenizer, steps=4, **same)
    # the learning rate decays until the last step, which differs between the two
    ours, theirs = (
        [line["share_masked"] for line in log(tmp_path / name) if line["kind"] == "training"]
        for name in ("parts", "whole")
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: batches(2), r"ended before step 3"),
        (lambda: [*batches(1), *batches(1, length=8)], r"batch 1 must be .*\[4, 16\].*\[4, 8\]"),
        (
            lambda: [batch + 100 for batch in batches(3)],
            r"batch 0 has token ids outside \[0, 512\)",
        ),
        (lambda: [batch.float() for batch in batches(3)], r"batch 0 must be int64"),
        (lambda: [torch.full((4, 16), 511)] * 3, r"batch 0 has the mask 511"),
        (lambda: [(batch, batch) for batch in batches(3)], r"batch 0: given must be bool"),
    ],
)
def test_wrong_batches_are_refused(made, message, data, tmp_path):
    with pytest.raises(DataError, match=message):
        train(tmp_path, made(), tokenizer=Tokenizer.load(data))


@pytest.mark.slow
def test_given_tokens_are_not_scored_and_a_resumed_run_is_the_same(data, tmp_path):
    tokenizer, pairs = Tokenizer.load(data), [(x, x % 2 == 0) for x in batches(4)]
    same = {"tokenizer": tokenizer, "warmup": 0, "report_every": 1, "save_every": 2}
    train(tmp_path / "whole", pairs, steps=4, **same)
    with pytest.raises(DataError, match="ended before step 4"):  # after the save of step 2
        train(tmp_path / "parts", pairs[:3], steps=4, **same)
    train(tmp_path / "parts", pairs, steps=4, **same)
    train(tmp_path / "plain", batches(4), steps=4, **same)
    whole, parts, plain = (
        {line["step"]: line["loss"] for line in log(tmp_path / name) if line["kind"] == "training"}
        for name in ("whole", "parts", "plain")
    )
    assert parts == whole  # to the last bit
    assert plain != whole


class Texts(Corpus):
    name, description = "texts", "a file"

    def __init__(self, path):
        self.path = path

    def documents(self):
        return find_documents(self.path)


def test_a_corpus_object_is_prepared_with_the_settings_of_data(tmp_path):
    """As files are: with a part held out, and as text or conversations."""
    line = json.dumps({"prompt": "add 1 2", "response": "3"})
    (tmp_path / "a.jsonl").write_text(f"{line}\n" * 20)
    settings = {"tokenizer": "bytes", "steps": 1, "format": "chat", "validation": 5}
    train(tmp_path / "run", Texts(tmp_path / "a.jsonl"), **settings)
    manifest = DataManifest.read(tmp_path / "run" / "data")
    assert manifest.format == "chat"
    assert {name: split.documents for name, split in manifest.splits.items()} == {
        "train": 15,
        "validation": 5,
    }


def test_files_are_data_and_a_tokenizer_object_encodes_them(data, tmp_path):
    (tmp_path / "a.txt").write_text("I embrace with great satisfaction. " * 50)
    own = Tokenizer.load(data)
    pipe = train(tmp_path / "run", tmp_path / "a.txt", tokenizer=own, validation=0.0)
    assert pipe.tokenizer.fingerprint == own.fingerprint


def test_training_works_in_a_thread_and_never_ends_the_process(data, tmp_path):
    found = []
    thread = Thread(target=lambda: found.append(train(tmp_path, data)))
    thread.start()
    thread.join()
    assert found[0].source["steps"] == 3
    (record,) = (tmp_path / "checkpoints").glob("step-000000003/record.json")
    assert json.loads(record.read_text())["run"]["train"]["timeout"] > 1e8


@pytest.mark.slow
def test_an_interrupted_run_returns_the_model_as_it_is(data, tmp_path, monkeypatch):
    """SIGINT, as a notebook sends it, after the second step; the same call goes on."""
    steps = iter(range(1, 9))

    def interrupt_at_2(self, step, metrics):
        if next(steps) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Report, "training", interrupt_at_2)
    settings = {"steps": 6, "report_every": 1, "warmup": 0}
    pipe = train(tmp_path, data, **settings)
    assert pipe.source["steps"] == 3  # the step that had begun is finished and saved
    assert "stopped at step 3" in pipe.notes[0]
    assert train(tmp_path, data, **settings).source["steps"] == 6


def test_mistakes_are_named(data, tmp_path):
    with pytest.raises(ConfigError, match=r"no setting 'lenght'. Did you mean length"):
        train(tmp_path, data, lenght=3)
    with pytest.raises(ConfigError, match=r"no preset 'nnano'. Did you mean nano"):
        train(tmp_path, data, preset="nnano")
    with pytest.raises(ConfigError, match=r"schedule must be one of .*got 'hybird'. Did you mean"):
        train(tmp_path, data, schedule="hybird")


def test_a_registered_part_of_this_module_is_saved_and_loaded(data, tmp_path, monkeypatch):
    from gidd.common.config import registry

    monkeypatch.setattr(registry, "_ADDED", dict(registry._ADDED))

    @gidd.register("weighting", "halved")
    @dataclass(frozen=True)
    class Halved(TightWeighting):
        """Half of the tight weights."""

        def __call__(self, t, x, z):
            return super().__call__(t, x, z) / 2

    train(tmp_path, data, weighting=gidd.component("weighting", "halved", w_max=2.0), steps=2)
    pipe = train(
        tmp_path,
        data,
        weighting=gidd.component("weighting", "halved", w_max=2.0),
        steps=3,
        warmup=0,
    )
    assert pipe.source["steps"] == 3


def test_the_loss_of_a_loop_trains_and_is_a_function_of_seed_and_step():
    vocab = gidd.Vocab(12, mask_id=11)
    schedule = MaskedSchedule(vocab)
    torch.manual_seed(0)
    denoiser = Denoiser(Network(12), vocab)
    optimizer = torch.optim.AdamW(denoiser.parameters(), 0.05)
    tokens = torch.tensor([[1, 2, 3, 4] * 4] * 8)
    losses = []
    for step in range(60):
        found = gidd.diffusion_loss(denoiser, schedule, tokens, step=step)
        found.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(found.nelbo)
    assert sum(losses[-10:]) / 10 < 0.7 * losses[0]
    again = [gidd.diffusion_loss(denoiser, schedule, tokens, step=k).loss for k in (7, 7, 8)]
    assert again[0] == again[1] != again[2]
    other = gidd.diffusion_loss(denoiser, schedule, tokens, step=7, seed=1).loss
    assert other != again[0]
    same = gidd.diffusion_loss(
        denoiser, schedule, tokens, step=7, weighting=TightWeighting(schedule)
    )
    assert same.loss == again[0]


ONES = torch.ones(2, 4, dtype=torch.int64)
MASKED = torch.tensor([[1, 2, 11, 3], [1, 2, 3, 4]])


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        (MASKED, {}, "mask 11, got 11"),
        (ONES * 12, {}, r"\[0, 12\) .*got 12"),
        (ONES - 2, {}, r"\[0, 12\) .*got -1"),
        (ONES[0], {}, r"tokens must be int64 of shape .*\[4\]"),
        (ONES[:0], {}, r"tokens must be .*\[0, 4\]"),
        (ONES.int(), {}, "tokens must be int64 .*int32"),
        (ONES, {"valid": ONES[:1].bool()}, r"valid must be bool .*\[1, 4\]"),
        (ONES, {"given": ONES}, "given must be bool .*int64"),
        (ONES, {"segments": ONES.bool()}, "segments must be integers .*bool"),
    ],
)
def test_wrong_inputs_of_the_loss_are_named(tokens, options, message):
    vocab = gidd.Vocab(12, mask_id=11)
    with pytest.raises(DataError, match=message):
        gidd.diffusion_loss(
            Denoiser(Network(12), vocab), MaskedSchedule(vocab), tokens, step=0, **options
        )


def test_masks_are_allowed_where_they_are_not_scored_and_inputs_stay_as_they_are():
    vocab = gidd.Vocab(12, mask_id=11)
    given = MASKED == 11
    before = MASKED.clone(), given.clone()
    denoiser = Denoiser(Network(12), vocab)
    weights = [parameter.detach().clone() for parameter in denoiser.parameters()]
    loss = gidd.diffusion_loss(denoiser, MaskedSchedule(vocab), MASKED, step=0, given=given).loss
    loss.backward()
    assert loss.isfinite()
    assert torch.equal(MASKED, before[0]) and torch.equal(given, before[1])
    assert all(map(torch.equal, denoiser.parameters(), weights))


def test_a_head_of_another_vocabulary_is_named():
    denoiser = Denoiser(Network(13), gidd.Vocab(13, mask_id=12))
    with pytest.raises(ConfigError, match="head .*12 tokens .*got 13"):
        gidd.diffusion_loss(denoiser, MaskedSchedule(gidd.Vocab(12, mask_id=11)), ONES, step=0)


def test_tokens_on_a_gpu_are_checked_without_a_wait():
    with pretended_cuda() as counts:
        vocab = gidd.Vocab(12, mask_id=11)
        tokens, masked = ONES.to("cuda:0"), MASKED.to("cuda:0")
        counts.reset()
        require_clean(vocab, tokens, None)
        assert counts.num_waits == 0, counts.report()
        with pytest.raises(RuntimeError, match="mask 11"):
            require_clean(vocab, masked, None)


def test_every_step_has_its_own_noise():
    """With equal random numbers, the masks at a smaller t would be some of those at a larger."""
    vocab, masks = gidd.Vocab(12, mask_id=11), []
    denoiser = Denoiser(Network(12), vocab)
    denoiser.backbone.hidden = lambda z, t: masks.append(z == 11) or denoiser.backbone.embedding(z)
    for step in (0, 1):
        gidd.diffusion_loss(denoiser, MaskedSchedule(vocab), torch.ones(8, 64).long(), step=step)
    first, second = masks
    is_nested = ~(first & ~second).any(-1) | ~(second & ~first).any(-1)
    assert not is_nested.all()


def test_the_nelbo_of_the_loss_is_that_of_the_definition():
    """The mean over many steps is the NELBO of a denoiser that knows nothing: log 11."""
    vocab = gidd.Vocab(12, mask_id=11)
    schedule = MaskedSchedule(vocab)
    network = Network(12)
    nn.init.zeros_(network.head.weight)
    nn.init.zeros_(network.head.bias)
    denoiser = Denoiser(network, vocab)
    tokens = torch.arange(11).repeat(64, 1)
    with torch.no_grad():
        found = [gidd.diffusion_loss(denoiser, schedule, tokens, step=k).nelbo for k in range(20)]
    estimate = torch.stack(found)
    error = estimate.std() / len(found) ** 0.5
    assert abs(estimate.mean() - torch.log(torch.tensor(11.0))) < 4 * error + 1e-3


def test_the_door_is_listed_without_torch():
    code = (
        "import sys, gidd; names = set(dir(gidd)); "
        "assert {'train', 'diffusion_loss', 'register', 'component', 'from_pretrained', "
        "'Pipeline', "
        "'Vocab'} <= names, names; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
