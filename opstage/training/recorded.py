"""A whole training step of a model, or its forward pass, recorded as a graph without any data."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..api import argument_paths, with_train
from ..init import build
from ..interpreters.graph import Graph
from ..interpreters.graph.recorder import record
from ..models import Model
from ..ops.dims import Dim, DimScope
from ..ops.dims.notation import parse_expression, parse_relations
from ..ops.errors import UsageError, nearest
from ..ops.spec import Spec, as_specs
from ..ops.trees import Structure, flatten, paths, structure_paths, unflatten
from ..ops.types import DType, TensorType, as_dtype
from ..options import Options
from .optim import Optimizer
from .step import Clip, LossProgram, forward_program, step_program

_RELATIONS = {"==": operator.eq, "<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt}


def record_model(
    model: Model,
    options: Options,
    optimizer: Optimizer | None = None,
    clip: Clip | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
) -> Graph:
    """The graph of one training step: forward, backward, clipping and update; without an optimizer, of the loss alone.

    sizes   numbers for named sizes of the batch, `{"B": 32}`; the others stay symbolic

    Inputs are called `params.<path>`, `state.<path>`, `slots.<path>.<i>`, by the names of the optimizer's scalars and
    of the loss's arguments, and `step` where the program draws random bits; outputs likewise, beside `loss` and
    `metrics.<name>`. Raises UsageError for a size that the model does not have or does not allow.
    """
    dtype = as_dtype(options.dtype)
    leaves, structure = flatten(params := build(model.init, dtype=options.dtype, seed=options.seed))
    initial = None if model.state is None else build(model.state, dtype=options.dtype, seed=options.seed)
    state, state_structure = flatten(initial)
    batch, batch_types, batch_structure = _batch(model, dtype, dict(sizes or {}))
    names = [f"params.{path}" for path in paths(params)]
    state_names = [f"state.{path}" if path else "state" for path in structure_paths(state_structure)]
    types = [TensorType(np.shape(leaf), dtype) for leaf in (*leaves, *state)] + batch_types
    every = [*names, *state_names, *batch]
    program = LossProgram(with_train(model.loss, optimizer is not None), structure, (True,) * len(leaves), bool(state))
    slots: list[Any] = []
    scalars: list[str] = []
    if optimizer is not None:
        slots += optimizer.init([(type_.shape, dtype) for type_ in types[: len(leaves)]], paths(params))
        scalars = list(optimizer.scalars(1))
        types += [TensorType(shape, np.dtype(kind)) for each in slots for shape, kind, _ in each]
        types += [TensorType((), dtype)] * len(scalars)
        every += [f"slots.{path}.{i}" for path, each in zip(paths(params), slots) for i in range(len(each))] + scalars
    result: list[Structure] = []

    def base(ops: Any, *refs: Any) -> tuple[Any, ...]:
        given = iter(refs)

        def take(count: int) -> list[Any]:
            return [next(given) for _ in range(count)]

        parameters, values = take(len(leaves)), unflatten(state_structure, take(len(state)))
        arguments = unflatten(batch_structure, take(len(batch)))
        if optimizer is None:
            tree = forward_program(program)(ops, parameters, values, arguments)
        else:
            held = [tuple(take(len(each))) for each in slots]
            rates = dict(zip(scalars, given))
            loss, aux, new, new_slots = step_program(program, optimizer, clip)(
                ops, parameters, held, rates, values, arguments
            )
            tree = loss, dict(aux.metrics), aux.state, list(new), [list(each) for each in new_slots]
        outputs, shape = flatten(tree)
        result.append(shape)
        return tuple(outputs)

    graph = record(base, types, dtype, options.seed, every)
    return Graph(graph.body, graph.input_names, _output_names(result[0], paths(params)), dtype, options.seed)


def _batch(model: Model, dtype: DType, sizes: dict[str, int]) -> tuple[list[str], list[TensorType], Structure]:
    """Names, types and structure of the loss's arguments, numbers put in for the sizes that are given."""
    scope, met = DimScope(), dict[str, None]()

    def size(name: str) -> Dim:
        met[name] = None
        return sizes[name] if name in sizes else scope.dim(name)

    specs, structure = flatten(tuple(as_specs(spec) for spec in model.batch))
    types = []
    for spec in specs:
        entries = spec.shape.split() if isinstance(spec.shape, str) else map(str, spec.shape)
        shape = tuple(parse_expression(entry, size) for entry in entries)
        types.append(Spec(shape, spec.dtype).bind(scope, dtype))
    for name in sizes:
        if name not in met:
            raise UsageError(
                f"{model.name} has no size {name!r}{nearest(name, met)}; it has {', '.join(met) or 'none'}"
            )
    for constraint in dict.fromkeys(constraint for spec in specs for constraint in spec.where):
        for left, relation, right in parse_relations(constraint, size):
            if not (isinstance(left, int) and isinstance(right, int)):
                scope.declare(f"{left} {relation} {right}")
            elif not _RELATIONS[relation](left, right):
                at = ", ".join(f"{name}={value}" for name, value in sizes.items())
                raise UsageError(f"{model.name} at {at}: {constraint} does not hold")
    skip = 2 if model.state is None else 3
    return argument_paths(model.loss, (*(None,) * (skip - 1), *model.batch)), types, structure


def _output_names(structure: Structure, parameters: list[str]) -> list[str]:
    """`loss`, `metrics.accuracy`, `state.…`, `params.…`, `slots.…`, from the places in the result's tree."""
    names = []
    for path in structure_paths(structure):
        part, _, rest = path.partition(".")
        kind = ("loss", "metrics", "state", "params", "slots")[int(part)]
        if kind in ("params", "slots"):
            number, _, slot = rest.partition(".")
            rest = parameters[int(number)] + (f".{slot}" if slot else "")
        names.append(f"{kind}.{rest}" if rest else kind)
    return names
