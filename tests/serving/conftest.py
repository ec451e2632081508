import threading

import pytest
from support.service import served, small_pipelines

from gidd.sampling.session import Session


@pytest.fixture(scope="session")
def pipelines(tmp_path_factory):
    return small_pipelines(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def service(pipelines):
    with served(pipelines) as found:
        yield found


@pytest.fixture
def goes_on(monkeypatch):
    """Forward passes end only while this event is set, as it is at first."""
    event, step = threading.Event(), Session._step
    event.set()

    def step_and_wait(session):
        step(session)
        event.wait(60)

    monkeypatch.setattr(Session, "_step", step_and_wait)
    yield event
    event.set()
