"""Checkpoints of a run.

Reading order: `checkpoints` (save, find, restore; all ranks enter), `series` (how a checkpoint
becomes visible, and which ones are kept), `folder` (one checkpoint on disk: manifest and damage),
`tensors` (sharded safetensors files).
"""

from gidd.training.checkpoints.checkpoints import (
    Checkpoints as Checkpoints,
    Restored as Restored,
    ValidCheckpoint as ValidCheckpoint,
)
from gidd.training.checkpoints.folder import (
    CheckpointManifest as CheckpointManifest,
    read_manifest as read_manifest,
    read_record as read_record,
)
