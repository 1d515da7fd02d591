"""Subgraphs of the program: gradient mode and autocast."""

from __future__ import annotations

from typing import Any

from ...operators.values import TensorValue
from ...ops.errors import UnsupportedError
from ..call import AtenCall, rule


@rule("higher_order.wrap_with_set_grad_enabled")
def _set_grad(call: AtenCall[Any], enabled: bool, module: Any, *inputs: Any) -> Any:
    outputs = call.around.subgraph(call.ops, module, inputs)
    return list(outputs) if enabled else [_detached(call, each) for each in outputs]


def _detached(call: AtenCall[Any], value: Any) -> Any:
    if isinstance(value, TensorValue) and value.dtype.kind == "f":
        return TensorValue(call.ops.detach(value.ref), value.dtype)
    return value


@rule("higher_order.wrap_with_autocast")
def _autocast(
    call: AtenCall[Any], device: str, dtype: Any, enabled: bool, cache: Any, module: Any, *inputs: Any
) -> Any:
    if enabled:
        raise UnsupportedError("autocast to a shorter float type would not round here; export the module without it")
    return list(call.around.subgraph(call.ops, module, inputs))
