"""The eager CPU interpreter: NumPy kernels, and numba kernels where they win."""

from .interpreter import NumpyOps

__all__ = ["NumpyOps"]
