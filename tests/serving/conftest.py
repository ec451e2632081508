import pytest
from support.service import served, small_pipelines


@pytest.fixture(scope="session")
def pipelines(tmp_path_factory):
    return small_pipelines(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def service(pipelines):
    with served(pipelines) as found:
        yield found
