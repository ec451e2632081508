"""No number has moved since `tests/golden/frozen.json` was recorded."""

import json

import pytest
from support import frozen

RECORDED = json.loads(frozen.FILE.read_text())
COMPONENTS = {"runs": frozen.runs, "texts": frozen.texts, "shards": frozen.shards}


@pytest.mark.slow
@pytest.mark.parametrize("part", COMPONENTS)
def test_numbers_have_not_moved(part, tmp_path):
    frozen.use_one_thread()
    frozen.require_equal(RECORDED[part], COMPONENTS[part](tmp_path), RECORDED["machine"])


@pytest.mark.slow
@pytest.mark.usefixtures("forked_traces")
@pytest.mark.parametrize("name", frozen.PLANS)
def test_plans_have_not_moved(name):
    old, new = RECORDED["plans"][name], frozen.plan(name)
    frozen.require_equal(old, new, RECORDED["machine"])
