"""Check a whole training step on shapes alone, before the first batch and against each batch."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Number
from typing import TYPE_CHECKING, Any, final

import numpy as np
from typing_extensions import override

from .. import optim
from ..data.dataset import Dataset
from ..data.loader import order
from ..interpreters.shape_check.check import check_base_program, unusable, with_captured
from ..interpreters.shape_check.contract import Contract
from ..interpreters.shape_check.finding import Finding
from ..interpreters.shape_check.lint_subject import StepRoles
from ..interpreters.shape_check.report import Report
from ..ops.array_conversion import as_numpy
from ..ops.dims import prod
from ..ops.errors import OpstageError, ProgramWarning, UsageError, ValidationError, nearest
from ..ops.mesh import ALONE, Mesh, parse_mesh
from ..ops.spec import Spec, as_specs, shapes_as_specs
from ..ops.tied_parameters import Places, identified, is_identified
from ..ops.trees import flatten, leaf, map_leaves, paths, unflatten
from ..ops.types import DType, as_dtype, dtype_name, is_float
from ..optim import Optimizer
from ..optim.optimizer import Slot
from ..options import Options, options_of
from ..program_arguments import BatchArguments, argument_paths, batch_arguments, with_train
from .parallel import DataParallel, shard_specs
from .parameters import requires_grad_flags, shared_arrays, shared_findings
from .sharding import DATA, Sharding, is_parameter_sharded, is_state_sharded
from .step import Clip, TrainingStep, named

if TYPE_CHECKING:
    from .state import TrainerState


# The arguments of a batch ---------------------------------------------------------------------------------------------


def by_position(batch: tuple[Any, ...], program: Callable[..., Any], skip: int, called: str = "the loss") -> Any:
    """Return the batch in the order of a program's batch arguments, if it is one dict of several of them or one
    Dataset.

    A program with one argument, or with unnamed arguments, receives a dict unchanged, as a tree. The first `skip`
    arguments of the program are not part of the batch; `called` names the program in messages. Raises UsageError,
    listing both sides, if names and arguments do not match.
    """
    if len(batch) == 1 and isinstance(batch[0], Mapping):
        return _entries(batch[0], batch_arguments(program, skip=skip), called) or batch
    if not any(isinstance(each, Dataset) for each in batch):
        return batch
    if len(batch) > 1:
        raise UsageError(
            "a Dataset is a whole batch, whose arrays go to the arguments of their names; give it alone, or its "
            "arrays one by one: dataset['x']"
        )
    dataset = batch[0]
    names = order(dataset.names, dataset.ordered, batch_arguments(program, skip=skip), called)
    return tuple([dataset[name] for name in names])


def require_count(count: int, program: Callable[..., Any], skip: int, called: str = "the loss") -> None:
    """Raise UsageError if the program does not take this number of batch arguments."""
    arguments = batch_arguments(program, skip=skip)
    if arguments is None or len(arguments.required) <= count <= len(arguments.required) + len(arguments.optional):
        return
    names = ", ".join((*arguments.required, *arguments.optional)) or "none"
    raise UsageError(
        f"{called} takes the batch arguments {names}, but {count} were given; give each as a separate argument, as "
        "tuple entries of a sample, or one dict of them"
    )


def _entries(given: Mapping[Any, Any], arguments: BatchArguments | None, called: str) -> tuple[Any, ...] | None:
    """Return the values of a dict keyed by argument, in argument order, or None if the dict itself is the argument."""
    if arguments is None:
        return None
    required, optional = arguments
    known = (*required, *optional)
    if len(required) < 2 and not (len(given) > 1 and set(given) <= set(known)):
        return None
    taken = known[: max(len(given), len(required))]
    if set(given) == set(taken):
        return tuple([given[name] for name in taken])
    missing, extra = [n for n in taken if n not in given], [str(name) for name in given if name not in taken]
    beside = f" (and may take {', '.join(optional)}, in that order)" if optional else ""
    why = [f"{missing[0]} is missing{nearest(missing[0], extra)}"] if missing else []
    why += [f"{extra[0]} is none of them"] if extra else []
    each = ", ".join(f"{name!r}: …" for name in required)
    raise UsageError(
        f"the batch is a dict of {', '.join(map(str, given)) or 'nothing'}, and {called} takes the batch arguments "
        f"{', '.join(required)}{beside}: {'; '.join(why)}. Give {{{each}}}, or the arrays in the order of the arguments"
    )


# Specs of parameters, from whatever form they come in -----------------------------------------------------------------

_SUPPLIED: dict[str, Callable[[], Any]] = {
    "seed": lambda: 0,
    "key": lambda: 0,
    "rng": lambda: np.random.default_rng(0),
    "dtype": lambda: "float32",
}
"""The arguments that a function that creates parameters may have, by name."""


def parameter_specs(source: Any, name: str = "params") -> Any:
    """Return a pytree of Specs from `source`, called `name` in messages: a pytree of Specs, arrays, declarations or
    shapes, a module with a `state_dict()`, or a function that returns one of these.

    Leaves shared by several places keep their identity, so that ties can be found: a Param, a tensor that a module has
    under several names, and arrays that share memory.

    The function may have arguments called seed, key, rng or dtype, and others with a default. Raises UsageError, with
    the path, for a leaf without a shape; exceptions of the function propagate.
    """
    if _makes(source):
        source = source(**_arguments(source, name))
    state = getattr(source, "state_dict", None)
    tree = _with_tied(dict(state())) if callable(state) else source
    leaves, _ = flatten(tree)
    if not leaves:
        raise UsageError(f"{name} holds no parameters: it is {_short(source)}")
    for path, item in zip(paths(tree), leaves):
        try:
            if not (isinstance(item, (Spec, Number)) or hasattr(item, "shape")):
                raise TypeError
            as_specs(_plain(item))
        except (OpstageError, ValueError, TypeError):
            raise UsageError(
                f"{name}.{path}".removesuffix(".") + f" has no shape: it is {_short(item)}; expected Specs, arrays, "
                "declared parameters, or a function that returns them"
            ) from None
    shared = {path for pair in shared_arrays(tree) for path in pair[:2]}
    kept = [
        as_numpy(x) if path in shared and not is_identified(x) else _plain(x) for path, x in zip(paths(tree), leaves)
    ]
    return map_leaves(
        lambda x: x if is_identified(x) or isinstance(x, np.ndarray) else as_specs(x),
        shapes_as_specs(unflatten(flatten(tree)[1], kept)),
    )


@leaf
@identified
@dataclass(frozen=True, eq=False)
class _Tensor:
    """A tensor that a module has under several names."""

    shape: tuple[int, ...]
    dtype: Any


def _with_tied(state: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors of a module by name, with one object for all that are the same view of the same memory."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, tensor in state.items():
        if callable(getattr(tensor, "data_ptr", None)) and math.prod(tensor.shape):
            groups.setdefault((tensor.data_ptr(), tuple(tensor.shape), tensor.stride()), []).append(name)
    for names in groups.values():
        if len(names) > 1:
            one = as_specs(_plain(state[names[0]]))
            state |= dict.fromkeys(names, _Tensor(tuple(one.shape), np.dtype(one.dtype or "float32")))
    return state


def _makes(source: Any) -> bool:
    """Return whether `source` must be called to get the parameters: a function or class, but not a callable module."""
    if isinstance(source, type):
        return True
    return callable(source) and not hasattr(source, "state_dict") and not hasattr(source, "shape")


def _arguments(function: Any, name: str) -> dict[str, Any]:
    supplied = {}
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    for parameter in parameters:
        if (
            parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            or parameter.default is not parameter.empty
        ):
            continue
        if parameter.name not in _SUPPLIED or parameter.kind is parameter.POSITIONAL_ONLY:
            raise UsageError(
                f"{name} is a function that wants an argument {parameter.name!r}; give one that returns the parameters "
                "without, or the parameters themselves"
            )
        supplied[parameter.name] = _SUPPLIED[parameter.name]()
    return supplied


def _plain(value: Any) -> Any:
    """Return the Spec of a value with a shape, unless its identity at several places matters."""
    if isinstance(value, Spec) or is_identified(value) or not isinstance(getattr(value, "shape", None), tuple):
        return value
    return as_specs(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


# The check of a step --------------------------------------------------------------------------------------------------


def check_step(
    loss: Callable[..., Any],
    params: Any,
    *batch: Any,
    optimizer: Optimizer | None = None,
    state: Any = None,
    options: Options | None = None,
    requires_grad: Any = None,
    clip: Clip | None = None,
) -> Report:
    """Check one whole training step of `loss(ops, params, *batch)` without data: forward, backward, clipping, update.

    Arguments are those of `scalar_trainer`, but nothing in them needs to exist: parameters, state and batch are pytrees
    of Specs, arrays, declared parameters and tuples of sizes. The optimizer is SGD if none is given, whose update has
    the shapes of every other. Raises nothing: what is wrong is in the report.

    Raises:
        UsageError: options that are none; what is wrong with the step is in the report.
    """
    step: dict[str, Any] = {"optimizer": optimizer, "state": state, "requires_grad": requires_grad, "clip": clip}
    return with_captured(check_planned_step(loss, params, *batch, options=options, **step)[0], loss, clip)


@dataclass(frozen=True)
class PlannedStep:
    """A step, or without an optimizer the forward pass, before any tensor of it exists.

    specs     the type of each input, and their names, in the order of the layout
    warnings  warnings about the parameters, found before anything runs
    mesh      the mesh whose ranks run the step
    kept      the sharded tensors, and the mesh axis over which they differ
    """

    layout: TrainingStep
    specs: tuple[Spec, ...]
    names: tuple[str, ...]
    warnings: tuple[Finding, ...] = ()
    mesh: Mesh = ALONE
    kept: Mapping[str, str] = field(default_factory=dict)


def check_planned_step(
    loss: Callable[..., Any], params: Any, *batch: Any, options: Options | None = None, **step: Any
) -> tuple[Report, PlannedStep | None]:
    """Return the report on the step that `training_step` returns for these arguments, and that step, or None on
    failure."""
    options = options_of(options)
    try:
        made = training_step(loss, params, *batch, options=options, **step)
    except OpstageError as error:
        return unusable("Spec", error), None
    layout = made.layout
    new = len(layout.trained_indices) + layout.counts[3]
    report = check_base_program(
        layout.tree,
        made.specs,
        made.names,
        options,
        parameters=layout.counts[0],
        tied=tuple([tuple([named("params", path) for path in paths]) for paths in layout.places.tied.values()]),
        step=StepRoles(layout.trained, hidden=sum(layout.counts[3:]), new=new),
        naming=layout.output_names,
        written=loss,
        mesh=made.mesh,
        kept=made.kept,
    )
    return replace(report, warnings=(*made.warnings, *report.warnings)), made


def training_step(
    loss: Callable[..., Any],
    params: Any,
    *batch: Any,
    optimizer: Optimizer | None = None,
    state: Any = None,
    options: Options | None = None,
    requires_grad: Any = None,
    clip: Clip | None = None,
    train: bool = True,
) -> PlannedStep:
    """Return the step that `check_step` checks; with `train=False` only the forward pass, in evaluation form.

    Raises UsageError for arguments that cannot be read as Specs.
    """
    options = options_of(options)
    dtype = as_dtype(options.dtype)
    params = shapes_as_specs(params)
    places = Places.of(params)
    parameters = places.first(flatten(as_specs(params))[0])
    state_specs, state_structure = flatten(as_specs(state)) if state is not None else ([], None)
    skip = 2 if state is None else 3
    trees = tuple(as_specs(tree) for tree in by_position(batch, loss, skip))
    program, mesh = with_train(loss, train), parse_mesh(options.mesh) if train else ALONE
    if not mesh.is_alone:
        program, trees = DataParallel(program, skip - 1), shard_specs(trees, mesh)
    batch_specs, batch_structure = flatten(trees)
    flags = requires_grad_flags(params, requires_grad, options)
    trained = [flag and (spec.dtype is None or is_float(as_dtype(spec.dtype))) for flag, spec in zip(flags, parameters)]
    layout = TrainingStep(program, places, tuple(trained), state_structure, batch_structure)
    slots: list[list[Spec]] = []
    scalars: list[Spec] = []
    kept: dict[str, str] = {}
    if train:
        optimizer = (optimizer if optimizer is not None else optim.sgd(lr=1.0)).bound(places.all_paths)
        names = [places.names[i] for i in layout.trained_indices]
        declared = optimizer.init([(parameters[i].entries, dtype) for i in layout.trained_indices], names)
        slots = [[_slot(slot.shape, slot) for slot in each] for each in declared]
        if options.zero and mesh.size(DATA) != 1:
            for number, (i, name) in enumerate(zip(layout.trained_indices, names)):
                shape = parameters[i].entries
                if is_state_sharded(shape, optimizer.at(name)):
                    size = _part_size(shape, mesh.size(DATA))
                    slots[number] = [_slot((size,), slot) for slot in declared[number]]
                    kept |= {f"slots.{name}.{j}": DATA for j in range(len(slots[number]))}
            parameters, whole = _in_parts(parameters, dtype, options.zero, mesh.size(DATA))
            layout = replace(layout, sharding=Sharding(options.zero, whole))
            kept |= {named("params", places.names[i]): DATA for i, shape in enumerate(whole) if shape is not None}
        first = optimizer.step_scalars(1)
        ends = optimizer.scalar_ranges()
        scalars = [Spec(()).beginning((value, value)).keeping(ends.get(name)) for name, value in first.items()]
        layout = replace(layout, optimizer=optimizer, clip=clip, slots=tuple(map(len, slots)), scalars=tuple(first))
    specs = layout.pack(parameters, state_specs, batch_specs, slots, scalars)
    names = argument_paths(loss, (*(None,) * (skip - 1), *trees)) if trees else []
    return PlannedStep(layout, specs, tuple(layout.input_names(names)), shared_findings(params), mesh, kept)


def _slot(shape: Any, slot: Slot) -> Spec:
    """Return a slot that is stored in that shape."""
    return Spec(shape, dtype_name(slot.dtype)).beginning((slot.fill, slot.fill))


def _in_parts(
    parameters: Sequence[Spec], dtype: DType, zero: int, ranks: int | str
) -> tuple[list[Spec], tuple[Any, ...]]:
    """Return the Specs of parameters as ranks keep them, and the full shapes of those that are sharded."""
    kept = [
        is_parameter_sharded(spec.entries, dtype if spec.dtype is None else as_dtype(spec.dtype), zero)
        for spec in parameters
    ]
    specs = [
        spec.changed(shape=(_part_size(spec.entries, ranks),)) if parts else spec
        for spec, parts in zip(parameters, kept)
    ]
    return specs, tuple([spec.entries if parts else None for spec, parts in zip(parameters, kept)])


def _part_size(shape: tuple[Any, ...], ranks: int | str) -> int | str:
    """Return the size of a rank's part, as an entry of a Spec: see `sharding.shard_shape`."""
    count = prod(shape)
    if isinstance(ranks, int):
        return int((count + ranks - 1) // ranks)
    return f"({count} + {ranks} - 1)//{ranks}"


@final
class BatchContract(Contract):
    """The Specs of a loss's batches. Without any, `options.validate` checks each new batch shape when it arrives.

    Raises ValidationError, with the report, for Specs that the step cannot accept.
    """

    def __init__(
        self, loss: Callable[..., Any], specs: tuple[Any, ...], options: Options, state: TrainerState, clip: Clip | None
    ):
        specs = by_position(specs, loss, state.batch_starts)
        self._loss = loss
        self._options = options
        self._state = state
        self._clip = clip
        names = argument_paths(loss, (*(None,) * (state.batch_starts - 1), *specs)) if specs else []
        super().__init__(specs, names)
        self._warned: set[tuple[Hashable, ...]] = set()
        if options.validate and specs:
            self._validate(specs)

    @override
    def unforeseen(self, batch: tuple[Any, ...]) -> None:
        if self._options.validate:
            self._validate(tuple(as_specs(tree) for tree in batch))

    def report(self, *specs: Any, optimizer: Optimizer | None = None) -> Report:
        """Return the shape checker's report on a whole training step, for batches of `specs`; see `check_step`."""
        held = self._state
        state = unflatten(held.structure, [_type_spec(leaf) for leaf in held.state])
        return check_planned_step(
            self._loss,
            held.tree,
            *specs,
            options=self._options,
            optimizer=optimizer,
            state=state if held.has_state else None,
            requires_grad=held.places.tree(held.trained),
            clip=self._clip,
        )[0]

    def _validate(self, specs: tuple[Any, ...]) -> None:
        report = self.report(*specs)
        if not report.ok:
            raise ValidationError(str(report), report)
        for finding in report.warnings:
            self._warn(finding)
        self.assume(report.conditions)

    def _warn(self, finding: Finding) -> None:
        """Issue a Python warning at the user's line, once per finding for all batch shapes."""
        key = (finding.rule, finding.op, finding.source)
        if key not in self._warned:
            self._warned.add(key)
            warning, source = ProgramWarning(str(finding), finding), finding.source
            if source is None:
                warnings.warn(warning, stacklevel=2)
            else:
                warnings.warn_explicit(warning, None, source.file, source.line)


def _type_spec(value: Any) -> Spec:
    return Spec(tuple(value.shape), dtype_name(value.dtype))
