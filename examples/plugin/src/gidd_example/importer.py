"""An importer: a layout of files that another project writes."""

from typing import cast

import gidd
from gidd.diffusion.schedules import UniformSchedule
from gidd.models import Backbone, Denoiser, Pretrained
from gidd.models.importers import Importer
from gidd.models.importers.checkpoint import ForeignCheckpoint
from gidd.models.networks import network_from_tensors, require_network
from gidd.vocab import Vocab
from gidd_example.network import ConvConfig


@gidd.register("importer", "conv")
class ConvImporter(Importer):
    """`config.json` with the sizes of a `ConvNet`, trained with random tokens only."""

    def matches(self, checkpoint: ForeignCheckpoint) -> bool:
        """Return whether `model_type` is "conv"."""
        return checkpoint.field("model_type") == "conv"

    def read(self, checkpoint: ForeignCheckpoint) -> Pretrained:
        """Read sizes and weights."""
        names = ("vocab_size", "max_length", "width", "num_layers", "reach")
        config = ConvConfig(**{name: checkpoint.integer(name) for name in names})
        weights = checkpoint.weights()
        require_network(config, weights.shapes, weights.file)
        network = cast(Backbone, network_from_tensors(config, weights.read()))
        denoiser = Denoiser(network, Vocab(config.vocab_size))
        schedule = UniformSchedule(denoiser.vocab)
        return Pretrained(denoiser=denoiser, schedule=schedule, sha256=weights.sha256)
