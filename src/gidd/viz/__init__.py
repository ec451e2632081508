"""Views of samples and runs: terminal, HTML, plots.

Reading order: `terminal` (the live view of sampling), `html` (a page that replays it), `diff`
(corrections as coloured lines or as a patch), `run_log` and `plots` (training curves). Names are
imported on first use.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.viz.diff import TextChange as TextChange, readable as readable, unified as unified
    from gidd.viz.html import Replay as Replay, write_page as write_page
    from gidd.viz.plots import plot_runs as plot_runs
    from gidd.viz.run_log import MetricSeries as MetricSeries, RunLog as RunLog
    from gidd.viz.terminal import CanvasView as CanvasView

__getattr__, __dir__ = lazy_exports(__name__)
