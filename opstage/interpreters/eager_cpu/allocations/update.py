"""Memory: what optimizers do with one parameter. New values stand beside the old ones."""

from __future__ import annotations

from ....ops.catalogue.update import (
    ADADELTA_UPDATE,
    ADAGRAD_UPDATE,
    ADAM_UPDATE,
    ADAMW_UPDATE,
    MOMENTUM_UPDATE,
    RMSPROP_UPDATE,
    SGD_UPDATE,
)
from ....ops.dims import Dim
from ....ops.primitive import Primitive
from .allocation import Allocation, Call, Rule, fresh, packing_bytes


def _decay(call: Call) -> Dim:
    """The gradient with its decay."""
    return call.operands[0].nbytes if call.static["weight_decay"] else 0


def _numpy(spare: int) -> Rule:
    """By NumPy, with `spare` tensors of the parameter's size besides the results and a decayed gradient."""
    return lambda call: fresh(call, _decay(call) + spare * call.operands[0].nbytes)


def _adamw(call: Call) -> Allocation:
    """The decay is of the parameter itself; the new parameter is written where the root was."""
    return fresh(call, _decay(call))


def _loop(call: Call) -> Allocation:
    return fresh(call, _decay(call) + packing_bytes(*call.operands))


ALLOCATIONS: dict[Primitive, Rule] = {
    SGD_UPDATE: _numpy(0),
    MOMENTUM_UPDATE: _numpy(0),
    ADAGRAD_UPDATE: _numpy(0),
    RMSPROP_UPDATE: _numpy(0),
    ADADELTA_UPDATE: _numpy(1),
    ADAM_UPDATE: _numpy(0),
    ADAMW_UPDATE: _adamw,
}

FAST_ALLOCATIONS: dict[Primitive, Rule] = {
    **dict.fromkeys((ADAGRAD_UPDATE, RMSPROP_UPDATE, ADADELTA_UPDATE, ADAM_UPDATE), _loop),
    ADAMW_UPDATE: lambda call: fresh(call, packing_bytes(*call.operands)),
}
