"""Exports of a package that are imported on first use."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType


def lazy_exports(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` (PEP 562) of the package with this `__name__`.

    The exports are the imports of its `if TYPE_CHECKING:` block, executed on the first use of a
    name. `__all__` is set to them. An export wins over a module of the package with the same name.
    """
    module = sys.modules[package]
    exports = {
        alias.name: str(node.module)
        for block in ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    class LazyPackage(ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            # Python makes every imported submodule an attribute of its package
            if not (name in exports and isinstance(value, ModuleType)):
                super().__setattr__(name, value)

    def __getattr__(name: str) -> object:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(exports[name]), name)
        setattr(module, name, value)  # the next access no longer comes here
        return value

    def __dir__() -> list[str]:
        return sorted({*exports, *(name for name in vars(module) if name.startswith("__"))})

    module.__dict__["__all__"] = sorted(exports)
    module.__class__ = LazyPackage
    return __getattr__, __dir__
