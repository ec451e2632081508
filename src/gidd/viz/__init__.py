"""Views of samples and runs: terminal, HTML, plots.

`terminal` (the live view of sampling), `html` (a page that replays it), `diff` (corrections as
coloured lines or as a patch), `figure` (what figures share), `run_plot`, `result_plot`.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.viz.diff import TextChange as TextChange, readable as readable, unified as unified
    from gidd.viz.html import Replay as Replay, write_page as write_page
    from gidd.viz.result_plot import (
        Panel as Panel,
        ResultTable as ResultTable,
        plot_noise as plot_noise,
        plot_results as plot_results,
    )
    from gidd.viz.run_plot import (
        MetricSeries as MetricSeries,
        RunGroup as RunGroup,
        RunLog as RunLog,
        plot_runs as plot_runs,
    )
    from gidd.viz.terminal import CanvasView as CanvasView

__getattr__, __dir__ = lazy_exports(__name__)
