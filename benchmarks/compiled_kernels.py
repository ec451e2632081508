"""Compile the Triton kernels for GPUs that are not here, and count what a logit costs.

python benchmarks/compiled_kernels.py            # a table; about two minutes
python benchmarks/compiled_kernels.py --json     # ends with one JSON object

Needs Triton (`gidd[gpu]`), no GPU. Instructions are counted in the machine code of the main loops,
which process all but the last tile of a row: SASS of NVIDIA, the assembly of AMD.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import triton
from script import parser_of, size
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gidd.diffusion.kernels.loss import LOSS_OPTIONS, TILE_BYTES, loss_kernel

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
"""A100, H100, B200, MI300."""

_ITEM_SIZES = {"bf16": 2, "fp32": 4}


class Pass(NamedTuple):
    """One pass over a row."""

    logits_per_load: float
    """Logits in 128 bits; fewer than fit if noise is loaded too."""

    has_rest: bool
    """Whether a second loop processes the last tiles, those that may not be complete."""


class Case(NamedTuple):
    """A kernel and the types and constants that it is compiled for."""

    name: str
    kernel: Any
    signature: dict[str, str]
    """Type of each argument; "constexpr" for constants."""

    constants: Mapping[str, object]
    options: Mapping[str, dict[str, Any]]
    """By backend."""

    passes: tuple[Pass, ...]


class Loop(NamedTuple):
    """Machine instructions of one loop."""

    instructions: tuple[str, ...]

    def number(self, pattern: str) -> int:
        """Return the number of instructions that match a pattern."""
        return sum(re.search(pattern, line) is not None for line in self.instructions)


class Compiled(NamedTuple):
    """The machine code of a kernel on one target."""

    registers: int
    spills: int
    """Instructions that store or load registers in local memory."""

    loops: tuple[Loop, ...]
    """All loops, in order."""


class Cost(NamedTuple):
    """What a logit costs in all passes together."""

    instructions: float
    special: float
    """Special functions (MUFU of NVIDIA): powers, reciprocals."""


def loss_case(noise: str, dtype: str) -> Case:
    """Return the loss for mask-only ("masked"), flat ("hybrid"), any or no noise ("clean")."""
    float_names = ("alpha_ptr", "noise_x_ptr", "noise_z_ptr", "loss_weight_ptr", "noise_ptr")
    floats = dict.fromkeys(float_names, "*fp32")
    types = {"logits_ptr": f"*{dtype}", "x_ptr": "*i64", "z_ptr": "*i64", **floats}
    types |= {"sample_ptr": "*i64", "kl_ptr": "*fp32", "itakura_saito_ptr": "*fp32", "width": "i32"}
    absent = {
        "clean": ("z_ptr", "noise_ptr", "sample_ptr"),
        "masked": ("noise_ptr", "sample_ptr"),
        "hybrid": ("sample_ptr",),
        "any": (),
    }[noise]
    size = _ITEM_SIZES[dtype]
    constants = {"GRADIENT": True, "BLOCK": TILE_BYTES // size} | dict.fromkeys(absent)
    over_logits, with_noise = Pass(16 / size, True), Pass(16 / (size + 4), False)
    passes = {"hybrid": (over_logits,) * 3, "any": (over_logits, with_noise, with_noise)}
    return Case(
        f"loss, {noise}, {dtype}",
        loss_kernel,
        types,
        constants,
        LOSS_OPTIONS,
        passes.get(noise, (over_logits,) * 2),
    )


def compiled(case: Case, target: str) -> Compiled:
    """Compile a kernel, as its launch does for arguments that are aligned to 16 bytes."""
    gpu = TARGETS[target]
    constants = dict(case.constants)
    names: list[str] = case.kernel.arg_names
    if "FAST" in names:
        constants["FAST"] = gpu.backend == "cuda"
    signature = {n: "constexpr" if n in constants else case.signature[n] for n in names}
    aligned = [i for i, n in enumerate(names) if n == "width" or signature[n].startswith("*")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = ASTSource(case.kernel, signature, constexprs=constants, attrs=attributes)
    binary: Any = triton.compile(source, target=gpu, options=case.options[gpu.backend])
    if gpu.backend == "cuda":
        return _read_sass(binary.asm["cubin"])
    return _read_amd(binary.asm["amdgcn"])


def cost(case: Case, code: Compiled) -> Cost:
    """Return instructions and special functions of a logit (NVIDIA)."""
    instructions = special = 0.0
    for loop, kernel_pass in zip(main_loops(case, code), case.passes, strict=True):
        num_logits = wide_loads(loop) * kernel_pass.logits_per_load
        instructions += len(loop.instructions) / num_logits
        special += loop.number("MUFU") / num_logits
    return Cost(instructions, special)


def main_loops(case: Case, code: Compiled) -> list[Loop]:
    """Return the loop of each pass that processes complete tiles."""
    loops = [loop for loop in code.loops if wide_loads(loop) or loop.number(_NARROW)]
    expected = sum(1 + kernel_pass.has_rest for kernel_pass in case.passes)
    if len(loops) != expected:
        raise RuntimeError(f"{case.name}: expected {expected} loops over a row, got {len(loops)}")
    rest = iter(loops)
    main: list[Loop] = []
    for kernel_pass in case.passes:
        main.append(next(rest))
        if kernel_pass.has_rest:
            next(rest)
    return main


def wide_loads(loop: Loop) -> int:
    """Return the number of loads of 128 bits."""
    return loop.number(_WIDE)


def narrow_loads(code: Compiled) -> int:
    """Return the number of loads of fewer than 128 bits in loops."""
    return sum(loop.number(_NARROW) for loop in code.loops)


_WIDE = r"LDG\.E\.128|load_dwordx4"
_NARROW = r"LDG\.E(?!\.128)|load_(?!dwordx4)\w+ v"


def _read_sass(cubin: bytes) -> Compiled:
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _output([folder / "cuobjdump", "-res-usage", file.name])
        code = _output([folder / "nvdisasm", file.name])
    lines = re.findall(r"^\s*(?:/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;|\.(L_x_\d+):)", code, re.MULTILINE)
    loops = _loops(lines, r"\bBRA\b.*\(\.(L_x_\d+)\)")
    registers = re.search(r"REG:(\d+)", usage)
    assert registers is not None, usage
    spills = sum(re.search(r"\b(STL|LDL)\b", line) is not None for line, _ in lines)
    return Compiled(int(registers[1]), spills, loops)


def _read_amd(code: str) -> Compiled:
    lines = re.findall(r"^(?:\t([a-z]\w+.*)|\.(LBB\d+_\d+):)", code, re.MULTILINE)
    loops = _loops(lines, r"^s_c?branch\w*\s+\.(LBB\d+_\d+)")
    registers, *spills = (
        int(value)
        for name in ("vgpr_count", "vgpr_spill_count", "sgpr_spill_count")
        for value in re.findall(rf"\.{name}:\s+(\d+)", code)
    )
    return Compiled(registers, sum(spills), loops)


def _loops(lines: Iterable[tuple[str, str]], branch: str) -> tuple[Loop, ...]:
    """Return what lies between a label and a branch back to it; lines are (instruction, label)."""
    labels: dict[str, int] = {}
    listing: list[str] = []
    loops: list[Loop] = []
    for instruction, label in lines:
        if label:
            labels[label] = len(listing)
            continue
        listing.append(instruction)
        back = re.search(branch, instruction)
        if back is not None and (start := labels.get(back[1])) is not None:
            loops.append(Loop(tuple(listing[start:])))
    return tuple(loop for loop in loops if len(loop.instructions) > 1)


def _output(command: Sequence[str | Path]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Compile and print."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--targets", nargs="*", default=size([*TARGETS], ["sm_90"]), help="default: all"
    )
    options = parser.parse_args()
    cases = [loss_case(noise, "bf16") for noise in ("hybrid", "masked", "any", "clean")]
    cases += [loss_case("hybrid", "fp32")]
    print(
        "| kernel | target | registers | spills | instructions | special functions | narrow loads |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    figures: dict[str, dict[str, Any]] = {}
    for case in cases:
        for target in options.targets:
            code = compiled(case, target)
            loop_cost = cost(case, code) if TARGETS[target].backend == "cuda" else None
            narrow = narrow_loads(code)
            counts = "- | -"
            if loop_cost is not None:
                counts = f"{loop_cost.instructions:.1f} | {loop_cost.special:.2f}"
            print(
                f"| {case.name} | {target} | {code.registers} | {code.spills} | {counts} | "
                f"{narrow} |",
                flush=True,
            )
            row = {"registers": code.registers, "spills": code.spills, "narrow_loads": narrow}
            row |= loop_cost._asdict() if loop_cost else {}
            figures[f"{case.name}, {target}"] = row
    if options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
