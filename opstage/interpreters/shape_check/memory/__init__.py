"""The memory that a program takes on the eager interpreter, from its shapes alone."""

from .formula import Formula
from .interpreter import KernelRun, MemoryOps, Tensor
from .report import PeakMemory
from .timeline import AllocationTrace, MemoryKind, Moment

__all__ = ["AllocationTrace", "Formula", "KernelRun", "MemoryKind", "MemoryOps", "Moment", "PeakMemory", "Tensor"]
