"""Write an imported model as Opstage source: `opstage import model.onnx`."""

from .write import WrittenModel, write_source

__all__ = ["WrittenModel", "write_source"]
