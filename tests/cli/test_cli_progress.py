"""Progress in a pipe: lines at intervals, by a clock of the test."""

from gidd.common.messages import ProgressLines


def test_a_line_every_half_minute_with_the_time_left(capsys):
    now = [0.0]
    report = ProgressLines(lambda: now[0])
    for second, done in ((0, 0), (10, 10), (31, 31), (40, 40), (62, 62), (70, 100)):
        now[0] = float(second)
        report("sampling", done, 100)
    assert capsys.readouterr().err.splitlines() == [
        "gidd: sampling: 31 of 100, 69 s left.",
        "gidd: sampling: 62 of 100, 38 s left.",
    ]


def test_short_actions_are_shown_as_well(capsys):
    """Each takes less than half a minute; the time left of a new one is not known."""
    now = [0.0]
    report = ProgressLines(lambda: now[0])
    for number in range(4):
        now[0] = 20.0 * number
        report(f"setting {number}", 1, 8)
    assert capsys.readouterr().err == "gidd: setting 2: 1 of 8.\n"
