from collections.abc import Iterator

import pytest
from support.attacks.honest import Honest, build
from support.sandbox import Sandbox


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Honest]:
    with Sandbox() as sandbox:
        yield build(tmp_path_factory.mktemp("honest"), sandbox)
