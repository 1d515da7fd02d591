"""The memory of a program on the eager interpreter, predicted from shapes."""

from .formula import Formula
from .interpreter import KernelRun, MemoryOps, Tensor
from .timeline import AllocationTrace, MemoryKind, Moment, PeakMemory

__all__ = ["AllocationTrace", "Formula", "KernelRun", "MemoryKind", "MemoryOps", "Moment", "PeakMemory", "Tensor"]
