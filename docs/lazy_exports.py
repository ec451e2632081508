"""An extension of griffe, which reads the docstrings of the API reference.

The packages of gidd export the imports of their `if TYPE_CHECKING:` block (`gidd.common.lazy`):
these names are members of their pages.
"""

import griffe


class LazyExports(griffe.Extension):
    """Set the exports of a package as `lazy_exports` sets its `__all__`."""

    def on_module_members(self, *, mod: griffe.Module, **_: object) -> None:
        """Called for every module that was read."""
        if "lazy_exports" in mod.members:
            mod.exports = [
                name
                for name, member in mod.members.items()
                if member.is_alias and not member.runtime
            ]
