"""Proofread English text with a small discrete diffusion model of characters.

    import gidd_proof

    proofreader = gidd_proof.load()
    result = proofreader.correct("The peopel of the Untied States.")
    print(result.text, result.changes)

Reading order: `words` (known words), `contexts` (words around them), `error_models` (what mistakes
look like), `edit_model` (the probability of a mistake), `protect` (what is never changed),
`candidates`, `rules`, `scorer`, `confidence`, `mistakes`, `proofreader` (texts); `user_words`;
`cli`, `check`, `review`, `serve`, `lsp`, `demo`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gidd_proof.error_models import ErrorModel as ErrorModel, learn_errors as learn_errors
    from gidd_proof.proofreader import Proofreader as Proofreader, load as load
    from gidd_proof.words import WordList as WordList

__version__ = "0.1.0"
_MODULES = {
    "ErrorModel": "error_models",
    "Proofreader": "proofreader",
    "WordList": "words",
    "learn_errors": "error_models",
    "load": "proofreader",
}
__all__ = ["ErrorModel", "Proofreader", "WordList", "learn_errors", "load"]


def __getattr__(name: str) -> object:
    """Import a public name on first use: help texts need no torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
