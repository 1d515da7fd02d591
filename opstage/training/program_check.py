"""Check a user's program from shapes, given by argument name: its forward pass or a whole training step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from .. import compilation
from ..api import check
from ..interpreters.graph import Graph
from ..interpreters.graph.recorder import record
from ..interpreters.shape_check.check import with_captured
from ..interpreters.shape_check.finding import Finding
from ..interpreters.shape_check.report import Report
from ..interpreters.shape_check.rules import NO_SCALAR_LOSS
from ..models import Model
from ..ops.dims import DimScope
from ..ops.errors import OpstageError, SourceLine, UsageError, a_type, nearest
from ..ops.protocol import Aux
from ..ops.spec import Shapes, Spec, as_specs, sized
from ..ops.types import FLOAT32, TensorType, as_dtype, is_float
from ..optim import Optimizer
from ..options import Options
from ..program_arguments import with_train
from .parameters import shared_findings
from .step import Clip
from .validate import PlannedStep, check_planned_step, parameter_specs, training_step

# A model's step or forward pass, recorded as a graph without any data -------------------------------------------------


def record_model(
    model: Model,
    options: Options,
    optimizer: Optimizer | None = None,
    clip: Clip | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
) -> Graph:
    """Return the graph of one training step: forward, backward, clipping and update; without an optimizer, of the loss
    alone, or of the outputs if the model has no loss.

    sizes   numbers for named sizes of the batch, `{"B": 32}`; the others stay symbolic

    Inputs are called `params.<path>`, `state.<path>`, `slots.<path>.<i>`, by the names of the optimizer's scalars and
    of the loss's arguments, and `step` where the program draws random bits; outputs likewise, with `loss` and
    `metrics.<name>`. Raises UsageError for a size that the model does not have or does not allow.
    """
    if optimizer is None and model.loss is None:
        trees = [as_specs(tree) for tree in (model.init, model.state) if tree is not None]
        return compilation.record(model.forward, *trees, *_batch(model, sizes), options=options)
    loss = model.forward if optimizer is None else model.require_loss()
    planned = training_step(
        loss, model.init, *_batch(model, sizes), **_step(model, options, optimizer, clip), requires_grad=True
    )
    layout, scope, dtype = planned.layout, DimScope(), as_dtype(options.dtype)
    outputs: list[str] = []

    def base(ops: Any, *refs: Any) -> tuple[Any, ...]:
        results, structure = layout.program(ops, *refs)
        outputs[:] = layout.output_names(structure)
        return tuple(results)

    types = [spec.bind(scope, dtype) for spec in planned.specs]
    for spec in planned.specs:
        spec.declare(scope)
    graph = record(base, types, dtype, options.seed, planned.names)
    return Graph(graph.body, graph.input_names, outputs, dtype, options.seed)


def check_model(
    model: Model,
    options: Options,
    optimizer: Optimizer | None = None,
    clip: Clip | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
) -> Report:
    """Return the report of a check on the graph that `record_model` records for the same arguments."""
    if optimizer is None and model.loss is None:
        trees = [as_specs(tree) for tree in (model.init, model.state) if tree is not None]
        return check(model.forward, *trees, *_batch(model, sizes), options=options, train=False)
    loss = model.require_loss()
    planned = _step(model, options, optimizer, clip)
    report, _ = check_planned_step(loss, model.init, *_batch(model, sizes), **planned)
    return with_captured(report, loss, clip)


def _batch(model: Model, sizes: Mapping[str, int] | None) -> tuple[Any, ...]:
    return tuple(sized(tuple(as_specs(spec) for spec in model.batch), sizes or {}, model.name))


def _step(model: Model, options: Options, optimizer: Optimizer | None, clip: Clip | None) -> dict[str, Any]:
    train = optimizer is not None
    return {"optimizer": optimizer, "state": model.state, "options": options, "clip": clip, "train": train}


FORWARD = "the forward pass"
STEP = "one training step"

_LOSSES = ("loss", "objective", "criterion")
"""Words in the names of programs that return a loss."""

_PARAMETERS = ("params", "parameters", "weights", "variables", "theta")


@final
@dataclass(frozen=True)
class Checked:
    """A report and the program that it is about.

    what            `FORWARD` or `STEP`
    params, state   trees of Specs, with shared leaves kept identical, see `parameter_specs`; None without any
    batch           the Spec of every tensor of the batch by path
    step            the inputs of a step, from which its memory is predicted
    """

    report: Report
    what: str
    params: Any
    state: Any
    batch: Mapping[str, Spec]
    step: PlannedStep | None = None


def check_program(
    program: Callable[..., Any],
    shapes: Shapes,
    *,
    options: Options | None = None,
    train: bool = True,
    step: bool | None = None,
    optimizer: Optimizer | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    dtype: str | None = None,
    ranges: bool = False,
) -> Checked:
    """Check `program(ops, [params, [state,]] *inputs)` for the given shapes, each by argument name.

    step   whether the backward pass and the update are checked too; None: if there are parameters and the program in
    training form returns a float scalar. A program that is named like a loss, or returns an Aux, must return one; for
    any other a warning says that only its forward pass was checked

    The claims of `shapes` are about the forward pass in evaluation form, `bounds` those of `opstage.check` for them,
    and `dtype` the one that they are read in, if it is not the program's.
    With `ranges`, for which bounds are stated too, they may be of inputs that the checked form alone has.
    Raises UsageError for shapes that do not match the program's arguments; errors of the program itself are in the
    report.
    """
    checked = _checked(program, shapes, options, train, step, optimizer)
    if not shapes.claims or checked.report.errors:
        return checked
    name = getattr(program, "__name__", type(program).__name__)
    bound = _bind(program, name, shapes, False)
    held = [tree for tree in (bound.params, bound.state) if tree is not None]
    from ..facts import bounds_of_claims, with_claims

    forward = check(bound.program, *held, *bound.batch, options=options)
    stated = bounds_of_claims(bounds or {}, forward, checked.report if ranges else None)
    claimed = with_claims(forward, shapes.claims, stated, dtype)
    return replace(checked, report=checked.report.with_verdicts(claimed))


def _checked(
    program: Callable[..., Any],
    shapes: Shapes,
    options: Options | None,
    train: bool,
    step: bool | None,
    optimizer: Optimizer | None,
) -> Checked:
    name = getattr(program, "__name__", type(program).__name__)
    bound = _bind(program, name, shapes, train)
    if step and bound.params is None:
        raise UsageError(f"a training step of {name} needs its parameters, and none are given")
    if step and not train:
        raise UsageError("a training step is taken in training form; ask for the forward pass or leave --eval out")
    held = [tree for tree in (bound.params, bound.state) if tree is not None]
    batch = {path: spec for path, spec in shapes.inputs.items() if path.partition(".")[0] not in bound.held}
    forward = check(bound.program, *held, *bound.batch, options=options)
    if step is None:
        step = train and bound.params is not None and forward.ok and _is_loss(forward.outputs, bound.state is not None)
        if train and bound.params is not None and forward.ok and not step and not _is_empty(forward.outputs):
            step = _means_a_loss(name, forward.outputs)
            if not step:
                found = _forward_alone(program, name, forward.outputs)
                forward = replace(forward, warnings=(*forward.warnings, found))
    if not step:
        said = any(warning.rule == NO_SCALAR_LOSS for warning in forward.warnings)
        returns = forward.ok and not _is_empty(forward.outputs)
        if name == _LOSSES[0] and returns and not said and not _is_loss(forward.outputs, bound.state is not None):
            found = _called_loss(program, name, forward.outputs)
            forward = replace(forward, warnings=(*forward.warnings, found))
        if bound.params is None:
            forward = replace(forward, program=replace(forward.program, parameters=0))
        else:
            forward = replace(forward, warnings=(*shared_findings(bound.params), *forward.warnings))
        return Checked(_complete(forward, program, name), FORWARD, bound.params, bound.state, batch)
    report, made = check_planned_step(
        bound.program, bound.params, *bound.batch, options=options, optimizer=optimizer, state=bound.state
    )
    report = with_captured(report, bound.program)
    return Checked(_complete(report, program, name), STEP, bound.params, bound.state, batch, made)


def line_of(program: Any) -> SourceLine | None:
    """Return the line where a function is defined."""
    code = getattr(inspect.unwrap(program) if callable(program) else program, "__code__", None)
    return None if code is None else SourceLine(code.co_filename, code.co_firstlineno)


@dataclass(frozen=True)
class _Bound:
    """A program bound to its arguments; `held` names the arguments for parameters and state."""

    program: Callable[..., Any]
    params: Any
    state: Any
    batch: tuple[Any, ...]
    held: tuple[str, ...]


def _bind(program: Callable[..., Any], name: str, shapes: Shapes, train: bool) -> _Bound:
    """Return the program as a function of the given arguments only, in order."""
    try:
        every = list(inspect.signature(program).parameters.values())
    except (TypeError, ValueError):
        raise UsageError(f"{name} lacks a signature to bind shapes to; give a Python function") from None
    kinds = inspect.Parameter
    arguments = [p for p in every if p.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD) and p.name != "train"]
    rest = next((p for p in every if p.kind is kinds.VAR_POSITIONAL), None)
    if not arguments or arguments[0].kind is kinds.KEYWORD_ONLY:
        if rest is None:
            raise UsageError(f"{name} takes no arguments; a program's first is the interpreter: {name}(ops, …)")
        arguments = [kinds("ops", kinds.POSITIONAL_ONLY), *arguments]
    arguments = arguments[1:]
    _require_readable(shapes.inputs)
    given = nested(shapes.inputs, name)
    params = None if shapes.params is None else parameter_specs(shapes.params)
    state = None if shapes.state is None else parameter_specs(shapes.state, "state")
    if params is None and arguments and arguments[0].name in _PARAMETERS:
        params = given.pop(arguments[0].name, None)
    held = arguments[: (params is not None) + (state is not None)]
    names = [p.name for p in arguments]
    owners = tuple(p.name for p in held)
    for owner in owners:
        if owner in given:
            raise UsageError(f"shapes for {owner} of {name} are given twice")
    free = [p for p in arguments if p not in held]
    for unknown in given:
        if unknown not in [p.name for p in free] and rest is None:
            takes = f"it takes {', '.join(names)}" if names else "it takes nothing after ops"
            raise UsageError(f"{name} has no argument {unknown!r}{nearest(unknown, names)}; {takes}")
    missing = [p.name for p in free if p.default is p.empty and p.name not in given]
    if missing:
        raise UsageError(_missing(name, missing))
    taken = [p for p in free if p.name in given]
    extra = [tree for path, tree in given.items() if path not in {p.name for p in taken}]
    by_position = [p for p in taken if p.kind is not kinds.KEYWORD_ONLY]
    in_order = [p.name for p in free[: len(by_position)]] == [p.name for p in by_position]
    if extra and not in_order:
        raise UsageError(f"shapes for *{rest.name if rest else ''} of {name} need those of every argument before it")
    trained = with_train(program, train)
    named = {p.name: given[p.name] for p in taken if not in_order or p.kind is kinds.KEYWORD_ONLY}
    if not named:
        return _Bound(trained, params, state, (*(given[p.name] for p in by_position), *extra), owners)
    positions = len(held) + (len(by_position) if in_order else 0)

    def bound(ops: Any, *trees: Any) -> Any:
        return trained(ops, *trees[:positions], **dict(zip(named, trees[positions:])))

    before = [*held, *(by_position if in_order else [])]
    labels = ["ops", *(p.name for p in before), *named]
    bound.__signature__ = inspect.Signature([kinds(n, kinds.POSITIONAL_ONLY) for n in labels])  # type: ignore[attr-defined]
    bound.__name__ = name
    bound.__wrapped__ = program  # type: ignore[attr-defined]  # the source of its arguments
    trees = [given[p.name] for p in by_position] if in_order else []
    return _Bound(bound, params, state, (*trees, *named.values()), owners)


def _require_readable(inputs: Mapping[str, Spec]) -> None:
    """Raise UsageError for dims or constraints that cannot be parsed, or that contradict each other."""
    scope = DimScope()
    for path, spec in inputs.items():
        try:
            type_ = spec.bind(scope, FLOAT32)
        except OpstageError as error:
            raise UsageError(f"{path}: {spec}: {error}") from error
        for dim in type_.shape:
            if isinstance(dim, int) and dim < 0:
                raise UsageError(f"{path}: {spec}: a size is at least 0, not {dim}")
    for spec in inputs.values():
        try:
            spec.declare(scope)
        except OpstageError as error:
            raise UsageError(f"where={list(spec.where)}: {error}") from error


def _missing(name: str, missing: list[str]) -> str:
    parts = [f"no shapes are given for {' and '.join(missing)} of {name}"]
    if missing[0] in _PARAMETERS:
        parts.append("give its parameters (--params NAME of a function or value that has them, or --param 'w: 10 64')")
        missing = missing[1:]
    if missing:
        parts.append(f"write for instance '{missing[0]}: B 64' (on the command line --input '{missing[0]}: B 64')")
    return "; ".join(parts)


def nested(flat: Mapping[str, Any], whose: str) -> dict[str, Any]:
    """Return a tree from leaves by dotted path; a node with keys 0, 1, 2 … is a tuple. Raises UsageError."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, last = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise UsageError(f"{path!r} of {whose}: {parent} is a tensor already")
        if last in node:
            raise UsageError(f"{path!r} of {whose} is given twice, as a tensor and as what holds others")
        node[last] = leaf
    return {name: _sequences(child) for name, child in tree.items()}


def _sequences(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    children = {key: _sequences(child) for key, child in tree.items()}
    if set(children) == {str(i) for i in range(len(children))}:
        return tuple(children[str(i)] for i in range(len(children)))
    return children


def _is_loss(outputs: Any, has_state: bool) -> bool:
    """Return whether the outputs are those of a training loss: a float scalar, alone or with an Aux."""
    if isinstance(outputs, tuple) and not isinstance(outputs, TensorType) and len(outputs) == 2:
        outputs, aux = outputs
        if not isinstance(aux, Aux):
            return False
    elif has_state:
        return False
    while isinstance(outputs, (dict, list)) and len(outputs) == 1:  # a tree of one tensor is accepted
        (outputs,) = outputs.values() if isinstance(outputs, dict) else outputs
    return isinstance(outputs, TensorType) and outputs.shape == () and is_float(outputs.dtype)


def _means_a_loss(name: str, outputs: Any) -> bool:
    """Return whether a program without a scalar result was meant as a loss: by its name, or because it returns
    an Aux."""
    returned = outputs if type(outputs) is tuple else (outputs,)
    return any(word in name.lower() for word in _LOSSES) or any(isinstance(each, Aux) for each in returned)


def _forward_alone(program: Any, name: str, outputs: Any) -> Finding:
    return Finding(
        name,
        f"{name} returns {_shown(outputs)}, no scalar loss: only its forward pass was checked, no backward pass and no "
        "update",
        source=line_of(program),
        rule=NO_SCALAR_LOSS,
        severity="warning",
        fix="if it is a loss, return a float scalar; if not, ask for the forward pass (--forward, step=False)",
    )


def _called_loss(program: Any, name: str, outputs: Any) -> Finding:
    return Finding(
        name,
        f"{name} returns {_shown(outputs)}: a loss is one float scalar, and nothing can be trained by this one",
        source=line_of(program),
        rule=NO_SCALAR_LOSS,
        severity="warning",
        fix="reduce it to a scalar, for instance with ops.reduce_mean; if it is not a loss, call it otherwise",
    )


def _shown(outputs: Any) -> str:
    return str(outputs) if isinstance(outputs, TensorType) else a_type(outputs)


def _complete(report: Report, program: Any, name: str) -> Report:
    """Require a program to return tensors, and place findings without their own line at the whole function."""
    errors = list(report.errors)
    if report.ok and _is_empty(report.outputs):
        errors.append(
            Finding(name, f"{name} returns no tensor", rule="program", fix="return a tensor, or a tree of tensors")
        )
    where = line_of(program)
    errors = [e if e.source is not None or e.rule == "spec" else replace(e, source=where) for e in errors]
    return replace(report, errors=tuple(errors))


def _is_empty(outputs: Any) -> bool:
    if isinstance(outputs, dict):
        return all(map(_is_empty, outputs.values()))
    if isinstance(outputs, (list, tuple)) and not isinstance(outputs, TensorType):
        return all(map(_is_empty, outputs))
    return outputs is None
