"""Show what is installed and what for, the device, and how fast it is.

Example:
  gidd doctor
"""

import os
import platform
import re
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version

from gidd import __version__
from gidd.cli.output import print_text
from gidd.cli.parsing import parse

_PURPOSES = {  # what the extras are for
    "data": "corpora of the hub, Parquet, remote files, loading with Grain",
    "hf": "networks of transformers, LoRA",
    "train": "TensorBoard",
    "eval": "graders, tasks",
    "viz": "plots",
    "serve": "`gidd serve`",
    "replicas": "`gidd serve --replicas`",
    "cluster": "Ray and Slurm",
    "gpu": "Triton kernels",
}
_SECONDS = 2.0
_BATCH, _LENGTH, _TOKENS = 8, 64, 1024


def doctor() -> None:
    """Print what was found."""
    for line in (*_packages(), "", *_device(), "", *_speed()):
        print_text(line)


def _packages() -> Iterator[str]:
    yield f"gidd {__version__}, Python {platform.python_version()}, torch {_version('torch')}"
    yield ""
    needed = requires("gidd") or []
    for extra, purpose in _PURPOSES.items():
        names = [
            match.group()
            for line in needed
            if f'extra == "{extra}"' in line.replace("'", '"')
            and (match := re.match(r"[\w.-]+", line)) is not None
            and match.group() != "gidd"
        ]
        if not names:  # installed before the extra existed
            continue
        missing = [name for name in names if _version(name) is None]
        state = f"missing {', '.join(missing)}: pip install 'gidd[{extra}]'" if missing else "ok"
        yield f"{extra:9} {purpose:62} {state}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _device() -> Iterator[str]:
    import torch

    from gidd.common.devices import has_bf16, resolve_device

    device = resolve_device(None)
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    yield f"device: {device.type} ({name})"
    yield f"precision of training: {'bf16' if has_bf16(device) else 'float32'}"
    if device.type == "cpu":
        available = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
        yield f"threads: {torch.get_num_threads()} of {available} cores"
        if os.environ.get("OMP_WAIT_POLICY", "").upper() != "PASSIVE":
            yield (
                "advice: if anything else runs on this machine, set OMP_WAIT_POLICY=PASSIVE and "
                "KMP_BLOCKTIME=0: idle threads then do not spin."
            )


def _speed() -> Iterator[str]:
    """Train `nano` on random tokens for two seconds."""
    import torch

    import gidd
    from gidd.common.devices import resolve_device
    from gidd.diffusion.schedules import HybridSchedule
    from gidd.models import SIZES, Denoiser, DiT
    from gidd.runs.presets import PRESETS

    device, vocab = resolve_device(None), gidd.Vocab(_TOKENS, mask_id=_TOKENS - 1)
    model = Denoiser(DiT(SIZES["nano"](vocab.size, _LENGTH)), vocab).to(device)
    schedule = HybridSchedule(vocab, 0.1)
    tokens = torch.randint(0, _TOKENS - 1, (_BATCH, _LENGTH), device=device)
    steps, start = -1, time.perf_counter()  # the first step allocates
    while time.perf_counter() - start < _SECONDS:
        gidd.diffusion_loss(model, schedule, tokens, step=steps + 1).loss.backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        steps += 1
        start = time.perf_counter() if not steps else start
    rate = max(1, steps) * tokens.numel() / (time.perf_counter() - start)
    nano = PRESETS["nano"]
    total = nano.train.steps * nano.train.global_batch * nano.data.length
    yield f"speed: {rate:,.0f} tokens/s of training `nano`"
    yield f"`gidd train nano` ({total:,} tokens): about {total / rate / 60:.0f} minutes"
    if total / rate > 3600:
        yield "advice: use fewer steps first, e.g. --train.steps 500, or a GPU."


def main(arguments: Sequence[str]) -> None:
    """Parse and show."""
    parse(doctor, arguments, prog="gidd doctor", description=__doc__)
