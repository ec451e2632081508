"""Docstrings of options are read by one thread at a time: `ast.parse` of Python 3.11 needs that."""

import inspect
import threading
from concurrent.futures import ThreadPoolExecutor

from gidd.common.config.options import attribute_docstrings


def test_one_thread_parses_at_a_time(monkeypatch):
    inside, most, second = 0, 0, threading.Event()

    def getsource(component: type) -> str:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if most > 1:
            second.set()
        second.wait(0.2)  # time for another thread to come in
        inside -= 1
        return f"class {component.__name__}:\n    size: int = 1\n    'Its size.'\n"

    monkeypatch.setattr(inspect, "getsource", getsource)
    classes = [type(f"Options{i}", (), {}) for i in range(4)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(attribute_docstrings, classes))
    assert found == [{"size": "Its size."}] * 4 and most == 1
