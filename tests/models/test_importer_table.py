"""What a network of each importer can do: every cell of the table works or is refused by name."""

import shutil

import pytest
from test_diffusion_gemma import TOY, load
from test_importers import GOLDEN, PROJECTS, SYMBOLS, checkpoint_folder, pipeline

from gidd import from_pretrained
from gidd.data.tokenizers import character_level
from gidd.errors import ConfigError
from gidd.models.importers import COMPONENTS, find_importer
from gidd.models.importers.checkpoint import read_checkpoint
from gidd.pipeline import Pipeline, SelfCorrectionOptions

NETWORKS = [*PROJECTS, "gidd", "diffusion_gemma"]
TEXT = "To be or"
CHAT = [{"role": "user", "content": "a"}]
SAMPLE = {"prompt": "To", "length": 10, "steps": 3}
PHRASE = SAMPLE | {"prompt": "To be", "guidance_scale": 2.0}
PASSES = SelfCorrectionOptions(forward_passes=3)
CALLS = {
    "prompt": lambda pipe: pipe.generate(n=2, **SAMPLE, confidence=True),
    "no prompt": lambda pipe: pipe.generate(length=8, steps=3),
    "frames": lambda pipe: pipe.generate(**SAMPLE, record_frames=True),
    "suffix": lambda pipe: pipe.generate(**SAMPLE, suffix="be"),
    "blocks": lambda pipe: pipe.generate(**SAMPLE, block_length=3),
    "stream": lambda pipe: "".join(pipe.stream(**SAMPLE).pieces()),
    "guidance": lambda pipe: pipe.generate(**PHRASE),
    "negative prompt": lambda pipe: pipe.generate(**PHRASE, negative_prompt="or to"),
    "infill": lambda pipe: pipe.infill("To [MASK:2] or", steps=3),
    "choices": lambda pipe: pipe.infill("To [MASK:2] or", choices=["be", "me"], steps=3),
    "blank first": lambda pipe: pipe.infill("[MASK:2] be", choices=["To", "No"], steps=3),
    "final corrector": lambda pipe: pipe.generate(**SAMPLE, final_corrector_steps=2),
    "self-correction": lambda pipe: pipe.generate(**SAMPLE, self_correction=PASSES),
    "correct": lambda pipe: pipe.correct(TEXT),
    "self_correct": lambda pipe: pipe.self_correct(TEXT, forward_passes=3),
    "noise_level": lambda pipe: pipe.noise_level(TEXT),
    "token_probabilities": lambda pipe: pipe.token_probabilities(pipe.tokenizer.encode(TEXT)),
    "score": lambda pipe: pipe.score(TEXT, nodes=2, repeats=2),
    "score after a prompt": lambda pipe: pipe.score(" or", prompt="To be", nodes=2, repeats=2),
}
MASKING = {"mdlm", "sedd_absorb", "llada", "llada_gqa_tied", "dream", "gidd_scaling_mask"}
NO_MASKS = {"duo", "gidd_scaling", "diffusion_gemma"}
NO_SCORES = "{} needs a model trained with uniform noise"
REFUSED = {
    "no prompt": ({"dream"}, "the first token must not be masked"),
    "blank first": ({"dream"}, "the first token must not be masked"),
    "score": ({"dream"}, "the first token must not be masked"),
    "guidance": (NO_MASKS, "guidance_scale with noise without masks needs a negative prompt"),
    "final corrector": (MASKING, NO_SCORES.format("final_corrector_steps")),
    "self-correction": (MASKING, NO_SCORES.format("self_correction")),
    "correct": (MASKING, NO_SCORES.format("correction")),
    "self_correct": (MASKING, NO_SCORES.format("self-correction")),
    "noise_level": (MASKING, NO_SCORES.format("the noise level")),
    "token_probabilities": (MASKING, NO_SCORES.format("the probability of tokens")),
}
"""By call: the networks for which it is refused, and how the message begins."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    target = tmp_path_factory.mktemp("foreign")
    for project in PROJECTS:
        checkpoint_folder(project, target)
    shutil.copytree(GOLDEN.parent / "dit_tiny_hf", target / "gidd")
    pytest.importorskip("transformers", minversion="5.12")
    return target


@pytest.fixture(scope="module", params=NETWORKS)
def network(request, folders) -> tuple[str, Pipeline]:
    name = request.param
    if name in PROJECTS:
        return name, pipeline(folders / name, PROJECTS[name][0])
    letters = SYMBOLS + "".join(map(chr, range(0x4E00, 0x4E00 + 256 - len(SYMBOLS))))
    tokenizer = character_level(letters)
    return name, load() if name == "diffusion_gemma" else from_pretrained(
        folders / name, tokenizer=tokenizer, device="cpu"
    )


@pytest.mark.parametrize("call", CALLS)
def test_a_call_works_or_is_refused_by_name(network, call):
    name, pipe = network
    names, words = REFUSED.get(call, (set(), ""))
    if name in names:
        with pytest.raises(ConfigError, match=f"^{words}"):
            CALLS[call](pipe)
    else:
        assert CALLS[call](pipe)


def test_the_table_has_all_importers(folders):
    found = {find_importer(read_checkpoint(folders / name)) for name in [*PROJECTS, "gidd"]}
    found.add(find_importer(read_checkpoint(TOY)))
    assert {name for name, _ in found} == COMPONENTS.keys()
