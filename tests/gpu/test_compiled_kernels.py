"""The kernels compiled for GPUs that are not here: registers, loads and instructions of a logit."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.interpreted import needs_triton

pytestmark = [pytest.mark.slow, needs_triton]

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """`benchmarks/compiled_kernels.py`; its binaries are not kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("compiled_kernels")
    sys.modules.pop("compiled_kernels")


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_spilled_and_loads_are_wide(kernels: ModuleType, target: str):
    cases = [kernels.loss_case(noise, "bf16") for noise in ("hybrid", "masked", "any")]
    if target == "sm_90":
        cases += [kernels.loss_case("hybrid", "fp32"), kernels.loss_case("clean", "bf16")]
    for case in cases:
        code = kernels.compiled(case, target)
        print(f"{target}: {case.name}: {code.registers} registers, {code.spills} spilled")
        assert code.spills == 0, case.name
        assert kernels.narrow_loads(code) == 0, case.name
        wide = [loop for loop in code.loops if kernels.wide_loads(loop)]
        assert len(wide) >= len(case.passes), case.name
        if target != "gfx942":
            assert code.registers <= 64, case.name  # two programs per multiprocessor
        if case.name == "loss, hybrid, bf16" and target != "gfx942":
            cost = kernels.cost(case, code)
            print(f"a logit: {cost.instructions:.1f} instructions, {cost.special:.2f} special")
            assert cost.instructions <= 40
            assert cost.special <= 5
