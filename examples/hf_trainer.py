"""Train a diffusion language model with the `Trainer` of transformers.

pip install -e ".[hf]"
python examples/hf_trainer.py speeches.txt --out runs/hf  # the same command resumes
torchrun --nproc-per-node 8 examples/hf_trainer.py speeches.txt --out runs/hf
gidd sample runs/hf/model --steps 64
"""

from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import gidd
from gidd.data.tokenizers import Tokenizer
from gidd.diffusion.schedules import HybridSchedule
from gidd.models import Denoiser, DiT, DiTConfig, save


class LossModel(nn.Module):
    """A module whose forward pass is the loss, as `Trainer` and DDP expect."""

    def __init__(self, denoiser: Denoiser, schedule: HybridSchedule, seed: int) -> None:
        super().__init__()
        self.denoiser, self.schedule, self.seed = denoiser, schedule, seed
        self.step = nn.Buffer(torch.tensor(0))  # of the noise; saved in checkpoints

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        """Return the loss and the NELBO of a batch."""
        self.step += 1
        step, seed = int(self.step), self.seed
        loss = gidd.diffusion_loss(self.denoiser, self.schedule, tokens, step=step, seed=seed)
        return loss._asdict()


def train(text: Path, /, out: Path, steps: int = 1000, length: int = 128) -> None:
    """Train `nano` on a text file; save checkpoints and the model."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.load("bytes")
    tokens = torch.tensor(tokenizer.encode(text.read_text(encoding="utf-8")))
    rows: Any = [{"tokens": row} for row in tokens.unfold(0, length, length)]
    schedule = HybridSchedule(tokenizer.vocab, p_uniform=0.1)
    network = DiT(DiTConfig.nano(tokenizer.vocab.size, max_length=length))
    # on GPUs add bf16=True; fp16 is refused
    args = TrainingArguments(str(out), max_steps=steps, learning_rate=2e-3, logging_steps=10)
    model = LossModel(Denoiser(network, tokenizer.vocab), schedule, seed=args.process_index)
    trainer = Trainer(model, args, train_dataset=rows)
    out.mkdir(parents=True, exist_ok=True)
    trainer.train(get_last_checkpoint(str(out)))
    if trainer.is_world_process_zero():
        save(out / "model", model.denoiser, schedule)
        tokenizer.save(out / "model")


if __name__ == "__main__":
    tyro.cli(train)
