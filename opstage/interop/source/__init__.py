"""Write an imported model as Opstage source: `opstage import model.onnx`."""

from __future__ import annotations

from .module import WrittenModel, write_source

__all__ = ["WrittenModel", "write_source"]
