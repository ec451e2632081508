"""The choice of a device, and errors for devices that are not available."""

import pytest
import torch
from support.pretended_device import pretended_cuda
from support.small_model import random_denoiser, write_model

import gidd.training.world
from gidd.common.devices import has_bf16, resolve_device
from gidd.diffusion.schedules import MaskedSchedule
from gidd.errors import ConfigError
from gidd.evaluation.graders import load_grader
from gidd.training.parallel import FSDP, distribute
from gidd.training.world import open_world
from gidd.vocab import Vocab


def test_an_available_device_is_chosen(device):
    assert resolve_device(device.type).type == device.type


def with_gpus(monkeypatch, number: int) -> None:
    """As if torch had found this number of GPUs."""
    cuda = torch.device("cuda") if number else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: cuda)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: number)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)


def test_the_default_is_the_fastest_device(monkeypatch):
    for number in (0, 2):
        with_gpus(monkeypatch, number)
        assert resolve_device(None).type == ("cuda" if number else "cpu")


def test_an_unavailable_device_is_an_error(monkeypatch):
    for number, here in ((0, "cpu"), (1, "cpu or cuda or cuda:0")):
        with_gpus(monkeypatch, number)
        with pytest.raises(ConfigError, match=f"device must be {here} .*got mps"):
            resolve_device("mps")


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:0", "cuda:1"])
def test_a_gpu_is_chosen_by_its_number(monkeypatch, name):
    with_gpus(monkeypatch, 2)
    assert resolve_device(name) == resolve_device(torch.device(name)) == torch.device(name)


@pytest.mark.parametrize("name", ["cuda:2", "cpu:1", "mps", "gpu", "", 1, torch.device("meta")])
def test_other_devices_are_refused_with_the_available_ones(monkeypatch, name):
    with_gpus(monkeypatch, 2)
    with pytest.raises(ConfigError, match=f"^device .*cuda or cuda:0 or cuda:1 .*got {name}"):
        resolve_device(name)


@pytest.mark.parametrize("name", ["cuda:7", torch.device("cuda", 7)])
def test_every_route_checks_the_device_first(name):
    """Before a model or data, which do not exist here, are read."""
    denoiser, vocab = random_denoiser(Vocab(9, mask_id=8)), Vocab(9, mask_id=8)
    for call in (
        lambda: gidd.from_pretrained("no-model", device=name),
        lambda: gidd.Pipeline(denoiser, MaskedSchedule(vocab), None, context=8, device=name),
        lambda: gidd.train("no-run", data="no-data", device=name),
        lambda: load_grader("no-grader", device=name),
    ):
        with pytest.raises(ConfigError, match="^device must be .*got cuda:7"):
            call()


def test_a_pipeline_computes_on_the_gpu_of_this_number(tmp_path):
    folder = write_model(tmp_path)
    with pretended_cuda():
        pipe = gidd.from_pretrained(folder, device=torch.device("cuda:0"), precision="float32")
        assert {str(p.device) for p in pipe.network.parameters()} == {"cuda:0"}
        assert (str(pipe.session.device), pipe.session.batch_size) == ("cuda:0", 16)
        assert {str(p.device) for p in pipe.denoiser.parameters()} == {"cpu"}  # to be saved


def test_one_process_trains_on_the_gpu_of_this_number(monkeypatch):
    with_gpus(monkeypatch, 2)
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name in ("init_process_group", "destroy_process_group"):
        monkeypatch.setattr(gidd.training.world.dist, name, lambda *_, **__: None)
    monkeypatch.setattr(gidd.training.world, "new_host_group", lambda timeout: None)
    monkeypatch.setattr(gidd.training.world, "World", lambda rank, size, device, *_: device)
    with open_world("cuda:1") as device:
        assert (device, chosen) == (torch.device("cuda", 1), [1])
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="^device must be cuda for 2 .*got cuda:1"):
        open_world("cuda:1").__enter__()


def on(monkeypatch, kind: str, **environment: int) -> None:
    """As if the machine had such a device."""
    monkeypatch.setattr(gidd.training.world, "resolve_device", lambda name: torch.device(kind))
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))


def test_an_apple_gpu_trains_alone_and_undivided(monkeypatch):
    on(monkeypatch, "mps")
    with open_world() as world:
        assert (world.device.type, world.mesh.device_type) == ("mps", "cpu")
        with pytest.raises(ConfigError, match="Use ddp"):
            distribute(FSDP(), torch.nn.Linear(2, 2), [], world, torch.float32)
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
