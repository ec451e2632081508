"""Exceptions raised by this library.

A message names the field, the value it was given, the values allowed and how to fix it. Errors
caused by user input are also `ValueError`s.
"""


class GiddError(Exception):
    """Base class of all exceptions raised by `gidd`."""


class ConfigError(GiddError, ValueError):
    """A setting is outside its allowed range."""


class ComponentNotInstalled(ConfigError):
    """A file names a component of a package that is not installed; the file itself is valid."""


class ScheduleError(GiddError, ValueError):
    """No Markov chain has the requested marginals, or a formula is undefined for a schedule."""


class DataError(GiddError, ValueError):
    """Tokens, documents or data files are invalid."""


class CheckpointError(GiddError, ValueError):
    """A checkpoint is missing, damaged or belongs to another model."""


class LimitReached(GiddError):
    """A request was not finished within its limits."""


class Overloaded(GiddError):
    """More requests wait than a session accepts; `seconds` is the expected time until fewer do."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class TrainingDiverged(GiddError):
    """The loss or a gradient is not finite."""
