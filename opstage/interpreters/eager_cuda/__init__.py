"""Runs each op at once on an NVIDIA GPU; `kernels/` has the kernels on device buffers, one family per file."""

from ...compiler.gpu.buffer import DeviceBuffer
from .interpreter import CudaOps

__all__ = ["CudaOps", "DeviceBuffer"]
