"""Weights of other libraries by name: the functions of `opstage.interop.weights`."""

from ..interop.weights import (
    export_weights,
    import_weights,
    propose_for,
    pytorch_names,
    read_config,
    read_state_dict,
    read_weights,
    write_state_dict,
    write_weights,
)
from ..interop.weights.mapping import MappedParameter, Source, WeightMap, names_by_path, read_named, write_named
from ..interop.weights.proposal import propose

__all__ = [
    "MappedParameter",
    "Source",
    "WeightMap",
    "export_weights",
    "import_weights",
    "names_by_path",
    "propose",
    "propose_for",
    "pytorch_names",
    "read_config",
    "read_named",
    "read_state_dict",
    "read_weights",
    "write_named",
    "write_state_dict",
    "write_weights",
]
__dir__ = __all__.copy
