"""Every error this library raises on purpose.

A message says which field is wrong, what was given, what is allowed and what to do.
"""


class GiddError(Exception):
    """Base of all errors raised by `gidd`; catch this to catch them all."""


class ConfigError(GiddError, ValueError):
    """A setting is outside its allowed range."""


class ScheduleError(GiddError, ValueError):
    """No Markov chain has the requested marginals, or a formula is undefined for a schedule."""


class DataError(GiddError):
    """Tokens or files are not what they should be."""


class CheckpointError(GiddError):
    """A checkpoint is missing, damaged or of another model."""


class TrainingDiverged(GiddError):
    """The loss or a gradient is no longer finite."""
