"""Train a diffusion language model with Lightning.

pip install -e . pytorch-lightning
python examples/lightning.py speeches.txt --out runs/lightning  # the same command resumes
gidd sample runs/lightning/model --steps 64
"""

from pathlib import Path

import torch
import tyro
from pytorch_lightning import LightningModule, Trainer  # `lightning` would import this file
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

import gidd
from gidd.data.tokenizers import Tokenizer
from gidd.diffusion.schedules import HybridSchedule
from gidd.models import Denoiser, DiT, DiTConfig, save


class Diffusion(LightningModule):
    """The loss of a batch, and the optimizer."""

    def __init__(self, denoiser: Denoiser, schedule: HybridSchedule) -> None:
        super().__init__()
        self.denoiser, self.schedule = denoiser, schedule

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the loss; every batch and every process has its own noise."""
        step, seed = self.trainer.fit_loop.total_batch_idx, self.global_rank
        loss = gidd.diffusion_loss(self.denoiser, self.schedule, batch[0], step=step, seed=seed)
        self.log_dict(loss._asdict(), prog_bar=True)
        return loss.loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW of all parameters."""
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def train(text: Path, /, out: Path, steps: int = 1000, length: int = 128) -> None:
    """Train `nano` on a text file; save checkpoints and the model."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.load("bytes")
    tokens = torch.tensor(tokenizer.encode(text.read_text(encoding="utf-8")))
    rows = TensorDataset(tokens.unfold(0, length, length))
    schedule = HybridSchedule(tokenizer.vocab, p_uniform=0.1)
    network = DiT(DiTConfig.nano(tokenizer.vocab.size, max_length=length))
    model = Diffusion(Denoiser(network, tokenizer.vocab), schedule)
    checkpoints = ModelCheckpoint(out, save_last=True)
    trainer = Trainer(max_steps=steps, callbacks=checkpoints, default_root_dir=out)
    trainer.fit(model, DataLoader(rows, batch_size=8, shuffle=True), ckpt_path="last")
    if trainer.is_global_zero:
        save(out / "model", model.denoiser, schedule)
        tokenizer.save(out / "model")


if __name__ == "__main__":
    tyro.cli(train)
