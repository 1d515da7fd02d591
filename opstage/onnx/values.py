"""Values on the edges of an ONNX graph while it runs."""

from ..imported.values import (
    KnownValue,
    TensorValue,
    Value,
    broadcast,
    common_shape,
    held,
    known,
    ref_of,
    stretched,
)

__all__ = ["KnownValue", "TensorValue", "Value", "broadcast", "common_shape", "held", "known", "ref_of", "stretched"]
