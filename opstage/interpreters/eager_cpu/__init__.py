"""The eager CPU interpreter: NumPy kernels, and compiled loops where they win."""

from .interpreter import NumpyOps

__all__ = ["NumpyOps"]
