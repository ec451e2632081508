"""What `gidd doctor` says."""

import re

from gidd.cli import doctor as module


def test_what_is_installed_and_missing_is_said(capsys, monkeypatch):
    monkeypatch.setattr(module, "_SECONDS", 0.05)
    lines = ['fastapi>=1; extra == "serve"', 'nothing>=1; extra == "viz"', "torch>=2.9"]
    monkeypatch.setattr(module, "requires", lambda name: lines)
    monkeypatch.setattr(module, "_version", lambda name: None if name == "nothing" else "1")
    module.main([])
    found = capsys.readouterr().out
    assert re.search(r"serve .* ok\n", found)
    assert "missing nothing: pip install 'gidd[viz]'" in found
    assert re.search(r"speed: [\d,]+ tokens/s", found) and "device: " in found
