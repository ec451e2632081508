"""The choice of a device, and errors for devices that are not available."""

import pytest
import torch

import gidd.training.world
from gidd.common.devices import choose, has_bf16
from gidd.errors import ConfigError
from gidd.training.parallel import FSDP, place
from gidd.training.world import open_world


def test_an_available_device_is_chosen(device):
    assert choose(device.type).type == device.type


def test_the_default_is_the_fastest_device(monkeypatch):
    for found in (None, torch.device("cuda")):
        monkeypatch.setattr(
            torch.accelerator, "current_accelerator", lambda check_available, found=found: found
        )
        assert choose(None).type == ("cuda" if found else "cpu")


def test_an_unavailable_device_is_an_error(monkeypatch):
    for fastest, here in ((None, "cpu"), ("cuda", "cpu or cuda")):
        found = fastest and torch.device(fastest)
        monkeypatch.setattr(
            torch.accelerator, "current_accelerator", lambda check_available, found=found: found
        )
        with pytest.raises(ConfigError, match=f"device must be {here} .*got mps"):
            choose("mps")


def on(monkeypatch, kind: str, **environment: int) -> None:
    """As if the machine had such a device."""
    monkeypatch.setattr(gidd.training.world, "choose", lambda name: torch.device(kind))
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))


def test_an_apple_gpu_trains_alone_and_undivided(monkeypatch):
    on(monkeypatch, "mps")
    with open_world() as world:
        assert (world.device.type, world.mesh.device_type) == ("mps", "cpu")
        with pytest.raises(ConfigError, match="Use ddp"):
            place(FSDP(), torch.nn.Linear(2, 2), [], world, torch.float32)
    on(monkeypatch, "mps", WORLD_SIZE=2)
    with pytest.raises(ConfigError, match="one process, got 2"), open_world():
        pass


def test_more_processes_than_gpus_are_refused(monkeypatch):
    on(monkeypatch, "cuda", LOCAL_RANK=2, WORLD_SIZE=3)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="local rank 2.* 2"), open_world():
        pass


def test_devices_with_fast_bfloat16_are_recognised(monkeypatch):
    cpu = torch.device("cpu")
    for names in ((), ("_is_amx_tile_supported",), ("_is_avx512_bf16_supported",)):
        for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
            monkeypatch.setattr(torch.cpu, name, lambda found=name in names: found)
        assert has_bf16(cpu) == bool(names)
    assert has_bf16(torch.device("cuda"))
    assert not has_bf16(torch.device("mps"))
