"""The meaning of ATen's ops: programs over Ops, one family per file."""

from importlib import import_module

_FAMILIES = ("activation", "complex", "convolution", "elementwise", "indexing", "layout", "linalg")
for _family in _FAMILIES:
    import_module(f"{__name__}.{_family}")  # registers its rules
