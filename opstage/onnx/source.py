"""Write an imported model as Opstage source."""

from ..interop.source import WrittenModel, write_source

__all__ = ["WrittenModel", "write_source"]
__dir__ = __all__.copy
