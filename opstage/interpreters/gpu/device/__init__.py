"""A GPU behind one interface: `interface.py` declares it, `simulator.py` runs kernels in Python."""

from .interface import Device
from .probe import find_device, gpus_seen

__all__ = ["Device", "find_device", "gpus_seen"]
