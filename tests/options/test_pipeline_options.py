"""Every argument and option of the pipeline's methods has an effect or is refused by its name."""

from dataclasses import fields
from functools import cache
from inspect import signature
from typing import Any

import pytest
from support.cases import once
from support.options import check_option, is_equal
from support.small_model import write_model

import gidd
from gidd.diffusion.times import even_times
from gidd.errors import ConfigError
from gidd.pipeline import Generation, SamplingOptions, SelfCorrectionOptions
from gidd.pipeline.options import LikelihoodOptions
from gidd.sampling import Temperature, sampling_plan

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')

RECORD = object()
"""A callback, whose calls are part of the result."""

SAMPLED = {"steps": 3, "seed": 3}
TEXT = {"text": "Peace and plenty for all."}
CHAT = {"messages": [{"role": "user", "content": "Peace?"}], "max_tokens": 8, **SAMPLED}
PROMPTED = {"prompt": "Peace", "length": 12, **SAMPLED}
BLANKS = {"template": "Pe[MASK:4]e al[MASK:3].", **SAMPLED}
BLOCKS = {"block_length": 4}
SURFACES: dict[str, tuple[str, dict[str, Any]]] = {
    "generate": ("generate", PROMPTED | {"n": 2}),
    "generate, blocks": ("generate", PROMPTED | BLOCKS | {"n": 2}),
    "generate, trained in blocks": ("generate", PROMPTED | {"n": 2}),
    "generate, masked": ("generate", PROMPTED),
    "infill": ("infill", BLANKS | {"n": 2}),
    "infill, masked": ("infill", BLANKS),
    "chat": ("chat", CHAT),
    "stream": ("stream", PROMPTED | BLOCKS),
    "stream_chat": ("stream_chat", CHAT | BLOCKS),
    "correct": ("correct", TEXT),
    "self_correct": ("self_correct", TEXT | {"forward_passes": 6, "temperature": 1.0}),
    "noise_level": ("noise_level", TEXT),
    "score": ("score", TEXT | {"nodes": 2, "repeats": 2}),
}
"""The method and the arguments that are the default here."""

FREE = SelfCorrectionOptions(forward_passes=8)
GUIDED, FINISHED = {"guidance_scale": 8.0}, {"final_corrector_steps": 2}
AWAY: dict[str, Any] = {
    "n": 3,
    "prompt": "all",
    "suffix": ".",
    "length": 14,
    "max_tokens": ({"length": None, "max_tokens": 5}, 4),
    "stop": list("abcdefghijklmnopqrstuvwxyz ,.") + ["\N{REPLACEMENT CHARACTER}"],
    "seed": 5,
    "start_index": 1,
    "sample_index": 1,
    "plan": ({"steps": 128}, sampling_plan(even_times(2))),
    "on_step": RECORD,
    "on_progress": RECORD,
    "on_forward_passes": RECORD,
    "record_frames": True,
    "confidence": True,
    "processors": (Temperature(0.1),),
    "template": "P[MASK:5]e all[MASK:2].",
    "choices": {1: ["zzz"]},
    "pattern": "[a-c]{2,9}",
    "schema": {"enum": ["a", "b"]},
    "messages": [{"role": "user", "content": "Plenty"}],
    "text": "all for plenty.",
    "protected": [(0, 24)],
    "error_rate": 0.5,
    "min_confidence": 0.99,
    "wrong_tokens": ({"error_rate": 0.5}, "frequent"),
    # fields of options
    "steps": 2,
    "timestep_spacing": "sine",
    "sampler": "renoise",
    "sampler_options": ({"sampler": "psi"}, {"renoise": 1.0}),
    "block_length": 3,
    "revise": (FINISHED, 1),
    "temperature": 0.1,
    "top_k": 1,
    "top_p": 0.1,
    "min_p": 0.9,
    "epsilon_cutoff": 0.5,
    "guidance_scale": 8.0,
    "negative_prompt": (GUIDED, "a"),
    "final_corrector": (FINISHED, "gibbs"),
    "final_corrector_options": (FINISHED, {"distance": 5}),
    "final_corrector_steps": 3,
    "self_correction": FREE,
    "forward_passes": 2,
    "patience": 1,
    "tokens_per_step": 3,
    "distance": ({"tokens_per_step": 3}, 5),
    "score": "gain",
    "nodes": 3,
    "repeats": 3,
    "grid": "stratified",
    "max_se": 0.4,
    "max_forward_passes": ({"max_se": 1e-9, "max_forward_passes": 12}, 16),
}
"""A value other than the default, perhaps with what must be set for it to matter."""

OWN: dict[tuple[str, str], Any] = {
    ("generate, masked", "sampler_options"): ({"sampler": "threshold"}, {"fill": 0.0}),
    ("generate, masked", "final_corrector"): "gibbs",
    ("generate, masked", "final_corrector_options"): {"distance": 5},
    ("generate, masked", "revise"): 1,
    ("infill, masked", "revise"): 1,
    ("generate, trained in blocks", "negative_prompt"): "a",
    ("infill, masked", "final_corrector"): "gibbs",
    ("infill, masked", "final_corrector_options"): {"distance": 5},
    ("infill", "guidance_scale"): 30.0,
    ("infill", "pattern"): {1: "[a-c]{3}"},
    ("chat", "max_tokens"): 5,
    ("stream_chat", "max_tokens"): 5,
    ("score", "prompt"): "al",
    ("score", "confidence"): False,
}
"""Values where a method, or one case of it, needs another one."""


def options_of(method: str) -> type | None:
    parameter = signature(getattr(gidd.Pipeline, method)).parameters.get("options")
    # by default None: what the model recommends
    return parameter and (SamplingOptions if parameter.default is None else type(parameter.default))


def names_of(method: str) -> list[str]:
    names = list(signature(getattr(gidd.Pipeline, method)).parameters)
    kind = options_of(method)
    changes = [field.name for field in fields(kind)] if kind else []
    return [name for name in [*names, *changes] if name not in ("self", "changes")]


CASES = [(surface, name) for surface in SURFACES for name in names_of(SURFACES[surface][0])]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Calls a method, and returns all that it returns but its manifest, and calls of callbacks."""
    folder = tmp_path_factory.mktemp("models")
    pipes = {
        p_uniform: gidd.from_pretrained(
            write_model(folder / str(p_uniform), p_uniform=p_uniform, context=64), device="cpu"
        )
        for p_uniform in (0.2, 0.0)
    }

    trained = pipes[0.2]._arguments | {"block_lengths": (4, 3, 16)}
    pipes["in blocks"] = gidd.Pipeline(**trained)

    def call(surface: str, changes: dict[str, Any]) -> Any:
        method, base = SURFACES[surface]
        calls: list[Any] = []
        arguments = {
            name: (lambda *_: calls.append(1)) if value is RECORD else value
            for name, value in {**base, **changes}.items()
        }
        name = "in blocks" if "trained" in surface else 0.0 if "masked" in surface else 0.2
        pipe = pipes[name]
        return plain(getattr(pipe, method)(**arguments)), bool(calls)

    return call


def plain(result: Any) -> Any:
    if isinstance(result, list):
        return [plain(each) for each in result]
    if hasattr(result, "pieces"):
        return list(result.pieces())
    if hasattr(result, "generation"):
        return plain(result.generation)
    if isinstance(result, Generation):
        frames = len(result.trace.frames)
        return result.tokens, result.text, result.confidence, frames, result.forward_passes
    found = {name: getattr(result, name) for name in getattr(result, "__dataclass_fields__", {})}
    found.pop("manifest", None)
    if traces := found.pop("traces", ()):
        found["frames"] = [len(trace.frames) for trace in traces]
    return found or result


@pytest.fixture(scope="module")
def default(run):
    @cache
    def result(surface: str, changes: tuple[tuple[str, Any], ...]) -> Any:
        return run(surface, dict(changes))

    return result


@pytest.mark.parametrize(("surface", "name"), once(CASES))
def test_an_argument_has_an_effect_or_is_refused(request, run, default, surface, name):
    """And of two samples, the second is what it is alone."""
    method, base = SURFACES[surface]
    if name == "options":
        kind = options_of(method)
        value = {
            SamplingOptions: SamplingOptions(temperature=0.1),
            SelfCorrectionOptions: SelfCorrectionOptions(tokens_per_step=3),
            LikelihoodOptions: LikelihoodOptions(seed=1),
        }[kind]
    else:
        value = OWN.get((surface, name)) or OWN.get((method, name), AWAY[name])
    needs, value = value if isinstance(value, tuple) and isinstance(value[0], dict) else ({}, value)
    found = []

    def away() -> Any:
        found.append(run(surface, needs | {name: value}))
        return found[0]

    before = default(surface, () if name == "plan" else tuple(needs.items()))
    check_option(request, f"Pipeline.{surface}", name, before, away)
    if found and base.get("n") == 2 and name not in ("n", "start_index"):
        alone = {"n": 1, "start_index": 1}
        assert is_equal(run(surface, needs | {name: value} | alone)[0][0], found[0][0][1])


@pytest.mark.parametrize("surface", SURFACES)
def test_results_are_compared_without_what_differs_from_call_to_call(run, default, surface):
    assert is_equal(run(surface, {}), default(surface, ()))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"final_corrector": "gibbs"}, "^final_corrector .* final_corrector_steps"),
        ({"final_corrector_options": {"distance": 5}}, "^final_corrector_options needs"),
        ({"self_correction": SelfCorrectionOptions(forward_passes=0, patience=3)}, "patience"),
        ({"self_correction": SelfCorrectionOptions(distance=3)}, "^distance .* tokens_per_step"),
        *(
            ({"steps": 128, name: AWAY[name], "plan": AWAY["plan"][1]}, f"^{name} .* plan")
            for name in ("steps", "timestep_spacing", "sampler", "self_correction")
        ),
        (FINISHED | {"steps": 128, "plan": AWAY["plan"][1]}, "^final_corrector_steps .* plan"),
    ],
)
@pytest.mark.parametrize("surface", ["generate", "infill"])
def test_what_another_option_switches_off_is_refused(run, surface, changes, words):
    with pytest.raises(ConfigError, match=words):
        run(surface, changes)


def test_self_correction_without_forward_passes_has_no_other_option(run):
    run("self_correct", {"forward_passes": 0, "temperature": 0.1})
    with pytest.raises(ConfigError, match="temperature"):
        run("self_correct", {"forward_passes": 0})
