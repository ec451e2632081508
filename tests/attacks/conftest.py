from collections.abc import Iterator

import pytest
from support.attacks.honest import Honest, build
from support.sandbox import Sandbox


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Honest]:
    """Honest folders of every kind; to make them, every command runs once: for both files."""
    with Sandbox() as sandbox:
        yield build(tmp_path_factory.mktemp("honest"), sandbox)
