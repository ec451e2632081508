"""Correction of found text: what mistakes look like, how many there are, and which to fix.

Reading order: `window_reader` (forward passes), `posterior_pass` (the posterior of each token),
`noise_level` with `noise_curve` (how much is wrong); `keyboard`, `ocr`, `channels` and
`learn_channel` (what mistakes look like); `words`, `edit_costs`, `regions`, `judge`, `places` and
`proofreader` (words of characters, judged as a whole), `token_proofreader` (single tokens), `edits`
and `parts` (results, and parts of long texts). Names are imported on first use.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.proofreading.channels import Channel as Channel, channel_by_name as channel_by_name
    from gidd.proofreading.learn_channel import learn_channel as learn_channel

__getattr__, __dir__ = lazy_exports(__name__)
