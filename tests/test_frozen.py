"""No number has moved since `tests/golden/frozen.json` was recorded."""

import json

import pytest
from support import frozen

RECORDED = json.loads(frozen.FILE.read_text())
SAME_MACHINE = frozen.machine() == RECORDED["machine"]
PARTS = {"runs": frozen.runs, "texts": frozen.texts, "shards": frozen.shards}


def require_equal(old: object, new: object) -> None:
    """Bit for bit on the recording machine; elsewhere floats to 1e-5, without their digests."""
    if SAME_MACHINE:
        assert frozen.differences(old, new) == []
    else:
        found = frozen.differences(old, new, tolerance=1e-5)
        assert [line for line in found if not line.partition(":")[0].endswith("/bits")] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_numbers_have_not_moved(part, tmp_path):
    frozen.use_one_thread()
    require_equal(RECORDED[part], PARTS[part](tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", frozen.PLANS)
def test_plans_have_not_moved(name):
    require_equal(RECORDED["plans"][name], frozen.plan(name))
