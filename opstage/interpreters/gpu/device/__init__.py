"""A GPU behind one interface: `interface.py` says what is asked of it, `simulator.py` runs kernels in Python."""

from .interface import Device
from .probe import find_device

__all__ = ["Device", "find_device"]
