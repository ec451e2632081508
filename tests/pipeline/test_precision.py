"""Copies of networks for a GPU, the process-wide TF32 flag, and weights that are not finite."""

import threading

import pytest
import torch
from support.pretended_device import pretended_cuda
from support.small_model import random_denoiser

from gidd.errors import CheckpointError
from gidd.models import Denoiser
from gidd.models.hub import load_network
from gidd.pipeline import precision
from gidd.vocab import Vocab

VOCAB = Vocab(65, mask_id=64)
Z, T = torch.arange(8)[None], torch.tensor([0.5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_network_with_a_tied_head_is_copied_to_a_gpu(dtype, tmp_path):
    """A Llama with a mask appended: its vocabulary is not a multiple of 64."""
    transformers = pytest.importorskip("transformers", reason="needs the extra `hf`")
    config = transformers.LlamaConfig(
        vocab_size=VOCAB.size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    denoiser = Denoiser(load_network(tmp_path).network.eval(), VOCAB).requires_grad_(False)
    expected = denoiser(Z, T)
    with pretended_cuda():
        copied = precision._copy_to_gpu(denoiser, torch.device("cuda:0"), dtype)
        found = copied(Z.to("cuda:0"), T.to("cuda:0")).to("cpu")
        assert all(p.dtype == dtype for p in copied.parameters())
        # rotary frequencies rounded to bf16 would rotate tokens by other angles
        assert {b.dtype for b in copied.buffers() if b.is_floating_point()} == {torch.float32}
    exact = dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 if exact else 3e-3)
    head = denoiser.backbone.head
    assert head.weight is denoiser.backbone.embedding.weight  # the model itself stays as it was


def test_threads_leave_the_flag_of_tf32_as_it_was():
    """The second thread enters while the first is inside, and leaves after it."""
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    inside, leave = threading.Event(), threading.Event()
    seen = []

    def second():
        with precision._tf32():
            inside.set()
            assert leave.wait(60)
            seen.append(settings.fp32_precision)

    thread = threading.Thread(target=second)
    with precision._tf32():
        thread.start()
        assert inside.wait(60)
    assert settings.fp32_precision == "tf32"  # the second still computes
    leave.set()
    thread.join()
    assert seen == ["tf32"] and settings.fp32_precision == before != "tf32"


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_model_in_memory_with_weights_that_are_not_finite_is_refused(value):
    denoiser = random_denoiser(VOCAB)
    with torch.no_grad():
        denoiser.backbone.blocks[0].mlp.up.weight[3, 1] = value
    with pytest.raises(CheckpointError, match=r"blocks.0.mlp.up.weight' .*NaN or infinity"):
        precision.in_precision(denoiser, "float32", torch.device("cpu"))
