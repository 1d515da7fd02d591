"""Each op at once, on an NVIDIA GPU: `kernels/` has what computes each op, a family a file, on buffers of `gpu`."""

from ..gpu.buffer import DeviceBuffer
from .interpreter import CudaOps

__all__ = ["CudaOps", "DeviceBuffer"]
