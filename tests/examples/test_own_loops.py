"""The loss in trainers of other libraries: the examples train, save, resume and sample."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

import gidd

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS = {"hf_trainer": "accelerate", "lightning": "pytorch_lightning"}
STEPS = 30

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of those libraries
]


def load_example(name: str) -> ModuleType:
    """Import an example by its path: the name `lightning` is also a package's."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def saved_weights(name: str, folder: Path) -> dict[str, torch.Tensor]:
    """Read the weights of the last checkpoint."""
    if name == "hf_trainer":
        return load_file(folder / f"checkpoint-{STEPS}" / "model.safetensors")
    return torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]


@pytest.mark.parametrize("name", NEEDS)
def test_an_example_trains_saves_resumes_and_samples(name, tmp_path, monkeypatch):
    pytest.importorskip(NEEDS[name])
    train, loss, calls = load_example(name).train, gidd.diffusion_loss, []

    def recorded(*args, **options):
        found = loss(*args, **options)
        calls.append((options["seed"], options["step"], found.loss.item()))
        return found

    monkeypatch.setattr(gidd, "diffusion_loss", recorded)
    text, out = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("the noise is part of the message. " * 200)
    train(text, out=out, steps=STEPS, length=16)
    losses = torch.tensor([loss for *_, loss in calls])
    assert len(losses) == STEPS
    assert losses[-10:].mean() < 0.75 * losses[:3].mean()

    saved, pipe = saved_weights(name, out), gidd.from_pretrained(out / "model", device="cpu")
    for key, weight in pipe.denoiser.named_parameters():
        torch.testing.assert_close(saved[f"denoiser.{key}"], weight, rtol=0, atol=0)
    assert set(pipe.generate(length=16, steps=16)[0].text) & set(
        "the noise is part of the message."
    )

    train(text, out=out, steps=STEPS + 3, length=16)  # resumes, with noise of its own
    assert len({(seed, step) for seed, step, _ in calls}) == len(calls) == STEPS + 3
    assert max(loss for *_, loss in calls[STEPS:]) < losses[:3].mean()
