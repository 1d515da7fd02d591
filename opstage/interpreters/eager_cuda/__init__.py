"""Each op at once, on an NVIDIA GPU: kernels written in Numba-CUDA, launched on buffers of the device.

`device/` is the GPU behind one interface, real or simulated; `kernels/` what computes each op, a family a file.
"""

from .buffer import DeviceBuffer
from .interpreter import CudaOps

__all__ = ["CudaOps", "DeviceBuffer"]
