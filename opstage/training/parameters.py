"""Trees of parameters: making, reading, writing and casting them, and one plain SGD step of a whole tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..init import Plan
from ..interpreters.interpreter import BaseInterpreter
from ..interpreters.registry import make_interpreter
from ..ops.catalogue.update import SGD_UPDATE
from ..ops.errors import ShapeError, UsageError
from ..ops.trees import align, flatten, map_leaves, paths, show_path, unflatten
from ..ops.types import as_dtype, is_float, show_shape
from ..options import Options
from .commit import uninterrupted
from .hyperparameters import require_nonnegative
from .param import Param


def requires_grad_flags(params: Any, requires_grad: Any, options: Options) -> list[bool]:
    """One flag per parameter leaf, aligned; a UsageError names the parameter where the list stops fitting."""
    leaves, structure = flatten(params)
    names = paths(params)
    if requires_grad is None:
        return [leaf.requires_grad if isinstance(leaf, Param) else options.requires_grad_by_default for leaf in leaves]
    if isinstance(requires_grad, bool):
        return [requires_grad] * len(leaves)
    if isinstance(requires_grad, (list, tuple)) and all(isinstance(flag, bool) for flag in requires_grad):
        if len(requires_grad) != len(leaves):
            at = min(len(requires_grad), len(leaves))
            where = f"; the first parameter without one is {names[at]}" if len(requires_grad) < len(leaves) else ""
            raise UsageError(f"requires_grad has {len(requires_grad)} flags for {len(leaves)} parameters{where}")
        return list(requires_grad)
    flags = align(structure, requires_grad, "the parameters", "requires_grad")
    for name, flag in zip(names, flags):
        if not isinstance(flag, (bool, np.bool_)):
            raise UsageError(f"requires_grad of {show_path(name)} must be a bool but is {flag!r}")
    return [bool(flag) for flag in flags]


def as_param(leaf: Any, name: str, requires_grad: bool, options: Options) -> Param:
    """A Param of its own: floats in the options' dtype; integer tables are never trained."""
    if isinstance(leaf, Param):
        leaf.requires_grad = requires_grad
        return leaf
    array = np.asarray(leaf)
    return Param(array, name=name, requires_grad=requires_grad and array.dtype.kind in "fO", dtype=options.dtype)


def make_params(values: Any, *, requires_grad: Any = None, options: Options | None = None) -> Any:
    """A tree of Params from a tree of arrays, each called by its path; arrays are copied."""
    options = options if options is not None else Options()
    leaves, structure = flatten(values)
    flags = requires_grad_flags(values, requires_grad, options)
    return unflatten(structure, [as_param(x, n, f, options) for x, n, f in zip(leaves, paths(values), flags)])


def plan_params(plan: Plan, parameters: Any, options: Options) -> Any:
    """A tree like `parameters` (whatever has shapes) of Params that the plan gives their first values.

    Each is made on the interpreter that first uses it. Raises UsageError where the plan does not fit.
    """
    placements = plan.placements(parameters, seed=options.seed)
    flag = options.requires_grad_by_default
    made = [Param.planned(p, dtype=options.dtype, name=p.path, requires_grad=flag) for p in placements]
    return unflatten(flatten(parameters)[1], made)


def get_values(params: Any) -> Any:
    """The values of a tree of Params, arrays of the caller's own; what a device holds is read back first."""
    return map_leaves(lambda param: np.array(param.value), params)


def set_values(params: Any, values: Any) -> None:
    """Overwrite a tree of Params; structure, shapes and numbers are checked before any is touched."""
    leaves, structure = flatten(params)
    new = align(structure, values, "the parameters", "the new values")
    checked = [param.checked(value) for param, value in zip(leaves, new)]
    with uninterrupted():
        for param, value in zip(leaves, checked):
            param.set(value)


def cast(tree: Any, dtype: str) -> Any:
    """The tree with its floating leaves in another dtype; integers and masks stay. Params give new Params."""
    target = as_dtype(dtype)

    def cast_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Param):
            return Param(leaf.value, name=leaf.name, requires_grad=leaf.requires_grad, dtype=target)
        array = np.asarray(leaf)
        if not is_float(array.dtype):
            return array
        return Param(array, requires_grad=False, dtype=target).value.copy()

    return map_leaves(cast_leaf, tree)


def sgd_step(params: Any, lr: float, grads: Any, *, options: Options | None = None) -> None:
    """p ← p - lr·g for every Param that requires a gradient, by the update's definition.

    `grads` is aligned with `params`, None at frozen ones; structure and shapes are checked before any is touched.
    """
    _sgd_step(params, lr, grads, options, fused=False)


def sgd_step_fast(params: Any, lr: float, grads: Any, *, options: Options | None = None) -> None:
    """`sgd_step` by the interpreter's fused kernel; equal to it bit for bit."""
    _sgd_step(params, lr, grads, options, fused=True)


def _sgd_step(params: Any, lr: float, grads: Any, options: Options | None, *, fused: bool) -> None:
    require_nonnegative("sgd_step", "lr", lr)
    leaves, structure = flatten(params)
    names = paths(params)
    pairs = _aligned(leaves, names, structure.flatten_up_to(_checked(structure, params, grads)))
    if not pairs:
        return
    dtype = {param.dtype.name for param, _ in pairs}
    options = (options if options is not None else Options()).replace(
        dtype="exact" if "object" in dtype else next(iter(dtype))
    )
    interpreter = make_interpreter(options)
    refs = [ref for param, grad in pairs for ref in (param.mirror(interpreter), interpreter.put(grad))]
    rate = interpreter.put(np.asarray(lr))

    def program(ops: BaseInterpreter[Any], lr_ref: Any, *inputs: Any) -> tuple[Any, ...]:
        static = {"weight_decay": 0.0}
        update = ops.bind if fused else ops.decompose
        return tuple(update(SGD_UPDATE, (p, g, lr_ref), static)[0] for p, g in zip(inputs[::2], inputs[1::2]))

    updated = interpreter.execute(program, (rate, *refs))
    if not interpreter.executes:
        return
    with uninterrupted():
        for (param, _), value in zip(pairs, updated):
            param.commit(value, interpreter)


def _checked(structure: Any, params: Any, grads: Any) -> Any:
    try:
        structure.flatten_up_to(grads)
    except ValueError as error:
        raise UsageError(f"the gradients are not built like the parameters: {error}") from None
    return grads


def _aligned(params: Sequence[Param], names: Sequence[str], grads: Sequence[Any]) -> list[tuple[Param, Any]]:
    pairs = []
    for param, name, grad in zip(params, names, grads):
        if not param.requires_grad:
            continue
        if grad is None:
            raise UsageError(f"parameter {show_path(name)} requires a gradient but is given None")
        if tuple(np.shape(grad)) != param.shape:
            raise ShapeError(
                f"the gradient of {show_path(name)} is {show_shape(np.shape(grad))} but the parameter is "
                f"{show_shape(param.shape)}",
                op="sgd_step",
            )
        pairs.append((param, grad))
    return pairs
