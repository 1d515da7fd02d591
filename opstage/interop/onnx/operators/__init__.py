"""ONNX's operators, one family per file: what each means over Ops, and which ops are exported as it."""

from importlib import import_module

from ..graph import HOST_INPUTS, RULES
from ..writer import EXPORTS

__all__ = ["EXPORTS", "HOST_INPUTS", "RULES"]

_FAMILIES = (
    *("activation", "classic", "control", "convolution", "elementwise"),
    *("layout", "quantization", "reduction", "sequence", "signal"),
)
for _family in _FAMILIES:
    import_module(f"{__name__}.{_family}")  # registers its rules
