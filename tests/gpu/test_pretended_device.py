"""What the pretended device counts and refuses is what CUDA launches, waits for and refuses."""

import pytest
import torch
import torch.nn.functional as F
from support.pretended_device import move_to_pretended, pretended_cuda
from support.pretended_tensor import DeviceError, PretendedTensor
from torch import Tensor, nn

from gidd.common.devices import define_kernel, device_type, has_kernels, upload

CUDA = torch.device("cuda:0")


@pytest.fixture
def counts():
    with pretended_cuda() as counts:
        yield counts


def on_device(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return PretendedTensor(torch.arange(1, 1 + torch.Size(size).numel()).view(size).to(dtype))


def test_tensors_are_on_cuda_and_have_numbers(counts):
    x = torch.tensor([1.0, 2.0]).to(CUDA)
    assert x.device == CUDA and device_type(x) == "cuda" and x.is_cuda
    assert (2 * x + torch.ones(2, device=CUDA)).tolist() == [3.0, 5.0]
    assert x.cpu().device.type == "cpu" and has_kernels(x) == has_kernels(x + 1)


def test_kernels_are_launches_and_views_and_allocations_are_not(counts):
    x = on_device(4, 6)
    x.view(6, 4).t()[1:].unsqueeze(0).expand(3, -1, -1).detach().split(2)
    torch.empty_like(x), x.new_empty(3), torch.empty(5, device=CUDA)
    assert (counts.num_launches, counts.num_waits) == (0, 0), counts.report()
    x.view(-1).mul_(2)
    (x + 1).sum()
    assert (counts.num_launches, counts.num_waits) == (3, 0), counts.report()


def test_the_line_and_the_operator_are_named(counts):
    x = on_device(3)
    x.exp()
    line = test_the_line_and_the_operator_are_named.__code__.co_firstlineno + 2
    assert counts.launches == {f"test_pretended_device.py:{line} exp": 1}
    F.one_hot(x.long(), 4)
    assert all("test_pretended_device.py:" in place for place in counts.launches)
    assert f"{line} exp" in counts.report()
    counts.reset()
    assert (counts.num_launches, counts.num_waits) == (0, 0)


def test_work_on_the_host_is_not_counted(counts):
    torch.ones(3).add(1).nonzero()
    assert not counts.launches and not counts.waits


WAITS = {
    "item": lambda x: x[0, 0].item(),
    "float": lambda x: float(x[0, 0]),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "if": lambda x: bool((x > 0).any()),
    "index by a number of the device": lambda x: x[x[0, 0].long()],
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 2),
    "mask": lambda x: x[x > 2],
    "assign rows by mask": lambda x: x.__setitem__(x > 0, x.exp().flatten()),
    "masked_select": lambda x: x.masked_select(x > 2),
    "unique": lambda x: x.unique(),
    "unique_consecutive": lambda x: x.flatten().unique_consecutive(),
    "unique_dim": lambda x: x.unique(dim=0),
    "equal": lambda x: torch.equal(x, x),
    "repeat_interleave": lambda x: x.repeat_interleave(on_device(3).long(), 0),
    "bincount": lambda x: x.long().flatten().bincount(),
    "upload": lambda x: torch.ones(3).to(CUDA),
    "upload of pageable memory": lambda x: torch.ones(3).to(CUDA, non_blocking=True),
    "torch.tensor": lambda x: torch.tensor([1.0], device=CUDA),
    "copy from the host": lambda x: x.copy_(torch.ones(3, 3)),
    "copy to the host": lambda x: torch.ones(3, 3).copy_(x),
    "assign a number to one entry": lambda x: x[0].__setitem__(0, 1.0),
    "synchronize": lambda x: torch.cuda.synchronize(),
    "event": lambda x: torch.cuda.Event().synchronize(),
    "indices on the host": lambda x: x[torch.tensor([0, 1])],
}


@pytest.mark.parametrize("name", WAITS)
def test_waits_are_counted(counts, name):
    x = on_device(3, 3)
    WAITS[name](x)
    assert counts.num_waits == 1, counts.report()


NO_WAITS = {
    "nonzero_static": lambda x: x.nonzero_static(size=4),
    "masked_scatter": lambda x: x.masked_scatter(x > 2, x),
    "masked_fill": lambda x: x.masked_fill(x > 2, 0.0),
    "assign a number by mask": lambda x: x.__setitem__(x > 2, 0.0),
    "assign a number to rows": lambda x: x.__setitem__(0, 1.0),
    "repeat_interleave": lambda x: x.repeat_interleave(on_device(3).long(), 0, output_size=6),
    "indices on the device": lambda x: x[on_device(2).long()],
    "full": lambda x: torch.full((3,), 2.0, device=CUDA),
    "arange": lambda x: torch.arange(3, device=CUDA),
    "number on the host": lambda x: x * torch.tensor(2.0),
    "to another type": lambda x: x.to(torch.bfloat16),
    "download to pinned memory": lambda x: x.to("cpu", non_blocking=True),
}


@pytest.mark.parametrize("name", NO_WAITS)
def test_what_does_not_wait(counts, name):
    NO_WAITS[name](on_device(3, 3))
    assert counts.num_launches > 0 and counts.num_waits == 0, counts.report()


def test_asynchronous_uploads_of_pinned_memory_are_launches(counts):
    pinned = torch.ones(3).pin_memory()
    assert pinned.is_pinned() and pinned[1:].is_pinned() and not torch.ones(3).is_pinned()
    assert pinned.to(CUDA, non_blocking=True).device == CUDA
    assert upload([1, 2], torch.int64, CUDA).dtype == torch.int64
    on_device(3).copy_(pinned, non_blocking=True)
    torch.empty(3, pin_memory=True).copy_(on_device(3), non_blocking=True)
    assert (counts.num_launches, counts.num_waits) == (4, 0), counts.report()
    pinned.to(CUDA)
    assert counts.num_waits == 1


MIXED = {
    "add": lambda x, host: x + host,
    "mm": lambda x, host: x @ host,
    "gather": lambda x, host: x.gather(0, host.long()),
    "cat": lambda x, host: torch.cat([x, host]),
    "stack numbers": lambda x, host: torch.stack([x[0, 0], host[0, 0]]),
    "index of a host tensor": lambda x, host: host[x[0].long()],
    "assigned rows": lambda x, host: x.__setitem__(x[0].long(), host),
    "linear": lambda x, host: nn.Linear(2, 2)(x),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices_are_refused(counts, name):
    with pytest.raises(DeviceError, match=r"test_pretended_device.py:\d+ .*mixes"):
        MIXED[name](on_device(2, 2) - 1, torch.zeros(2, 2))


def test_large_float64_tensors_are_refused(counts):
    on_device(1024).double().view(32, 32).expand(3, 32, 32)
    with pytest.raises(DeviceError, match=r"test_pretended_device.py:\d+ _to_copy .*1,025 float64"):
        on_device(1025).double()
    with pytest.raises(DeviceError, match="zeros"):
        torch.zeros(1025, device=CUDA, dtype=torch.float64)
    torch.zeros(1025, dtype=torch.float64)  # on the host


def test_large_float64_tensors_can_be_allowed():
    with pretended_cuda(refuses_float64=False):
        on_device(1025).double()


BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "found"),
    [(16, 24, 32, 0), (16, 20, 32, 1), (16, 24, 33, 1), (15, 24, 32, 0)],
)
def test_misaligned_products_are_recorded(counts, rows, inner, columns, found):
    """The rows of bf16 matrices must have a multiple of 8 entries; how many there are is free."""
    torch.mm(on_device(rows, inner, dtype=BF16), on_device(inner, columns, dtype=BF16))
    assert len(counts.misaligned) == found
    assert all("test_pretended_device.py:" in product for product in counts.misaligned)


def test_alignment_is_that_of_the_memory(counts):
    """A transposed matrix has the rows of the other one, a part of a padded matrix its padding."""
    x, head = on_device(16, 24, dtype=BF16), on_device(33, 24, dtype=BF16)
    padded = torch.empty(16, 40, dtype=BF16, device=CUDA)[:, :33]
    torch.mm(x, head.t(), out=padded)
    assert counts.misaligned == []
    F.linear(x, head, torch.zeros(33, dtype=BF16, device=CUDA))
    torch.bmm(x[None], head.t()[None])
    assert [product.count("[16, 33], rows of 66 bytes") for product in counts.misaligned] == [1, 0]
    assert "[1, 16, 33], rows of 66 bytes" in counts.misaligned[1]


def test_float32_products_of_bfloat16_matrices(counts):
    """Torch has them on CUDA only: not rounded to bfloat16."""
    x, y = on_device(8, 16, dtype=BF16), on_device(16, 8, dtype=BF16)
    expected = x.values.float() @ y.values.float()
    assert torch.mm(x, y, out_dtype=torch.float32).values.equal(expected)
    assert torch.bmm(x[None], y[None], out_dtype=torch.float32).values[0].equal(expected)
    total = torch.ones(8, 8, device=CUDA)
    assert torch.addmm(total, x, y, out_dtype=torch.float32).values.equal(expected + 1)
    added = torch.addmm(total, x, y, out_dtype=torch.float32, out=total)
    assert added is total and total.values.equal(expected + 1)


def scaled(x: Tensor, total: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    total.add_(x.sum())
    return x.exp().mul(factor), x.nonzero()


KERNEL = define_kernel(
    "pretended_test(Tensor x, Tensor(a!) total, float factor) -> (Tensor, Tensor)",
    definition=scaled,
    launch=scaled,
    shapes=scaled,
)


def test_operators_of_the_library_are_one_launch_and_may_change_arguments(counts):
    x, total = on_device(3), torch.zeros((), device=CUDA)
    counts.reset()
    found, positions = KERNEL(x, total, 2.0)
    assert (counts.num_launches, counts.num_waits) == (1, 0), counts.report()
    assert total.item() == 6 and found.device == positions.device == CUDA
    assert found.tolist() == x.values.exp().mul(2).tolist()
    with pytest.raises(DeviceError, match="gidd::pretended_test .*mixes"):
        KERNEL(x, torch.zeros(2), 2.0)


def test_attention_is_one_launch(counts):
    query = on_device(1, 2, 4, 8)
    mixed = F.scaled_dot_product_attention(query, query, query)
    assert counts.num_launches == 1 and mixed.device == CUDA, counts.report()
    values = query.values
    assert mixed.values.equal(F.scaled_dot_product_attention(values, values, values))


def test_modules_are_moved_and_record_gradients(counts):
    layer = move_to_pretended(nn.BatchNorm1d(4))
    assert {t.device for t in (*layer.parameters(), *layer.buffers())} == {CUDA}
    assert isinstance(layer.weight, nn.Parameter) and layer.weight.requires_grad
    assert layer(torch.ones(2, 4, device=CUDA)).requires_grad
    assert layer.running_mean.tolist() == pytest.approx([0.1] * 4)


def test_autocast_is_that_of_cuda(counts):
    """Layer norms are float32 on CUDA under autocast, and bfloat16 on the CPU."""
    linear, norm = move_to_pretended(nn.Linear(8, 8)), move_to_pretended(nn.LayerNorm(8))
    with torch.autocast("cuda", BF16):
        states = linear(torch.ones(2, 8, device=CUDA))
        assert (states.dtype, norm(states).dtype) == (BF16, torch.float32)


def test_tensors_do_not_compute_outside():
    with pretended_cuda():
        x = on_device(3) + 1
    with pytest.raises(DeviceError, match="outside"):
        x + 1
    with pytest.raises((RuntimeError, AssertionError)):
        torch.zeros(3, device=CUDA)
