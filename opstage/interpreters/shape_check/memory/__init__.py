"""The memory that a program takes on the eager interpreter, from its shapes alone."""

from .formula import Formula
from .interpreter import MemoryOps, Tensor
from .report import Memory
from .timeline import History, Kind, Moment

__all__ = ["Formula", "History", "Kind", "Memory", "MemoryOps", "Moment", "Tensor"]
