"""Checkpoints of a run.

Reading order: `manager` (save, find, restore; all ranks enter), `folder` (checkpoints on disk:
manifest, damage, how one becomes visible, which are kept), `tensors` (sharded safetensors files).
"""

from gidd.training.checkpoints.folder import (
    CheckpointManifest as CheckpointManifest,
    read_manifest as read_manifest,
    read_record as read_record,
)
from gidd.training.checkpoints.manager import (
    Checkpoints as Checkpoints,
    ValidCheckpoint as ValidCheckpoint,
)
