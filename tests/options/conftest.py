from collections import Counter
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The table of all options: how many change a result, how many are refused by name."""
    rows = [
        row
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        for name, row in getattr(report, "user_properties", [])
        if name == "option"
    ]
    if not rows:
        return
    terminalreporter.section("options set away from their defaults")
    form = "{:<24}{:>9}{:>9}{:>9}{:>16}"
    terminalreporter.write_line(form.format("", "options", "changed", "refused", "without effect"))
    surfaces = list(dict.fromkeys(surface for surface, _, _ in rows))
    for surface in [*surfaces, "all"]:
        counts = Counter(result for name, _, result in rows if surface in (name, "all"))
        cells = (counts[result] for result in ("changed", "refused", "no effect"))
        terminalreporter.write_line(form.format(surface, counts.total(), *cells))
