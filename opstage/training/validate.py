"""Checking a whole training step on shapes alone, before the first batch and against each batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from .. import optim
from ..arguments import argument_paths, with_train
from ..interpreters.shape_check import Contract, Finding, Report, StepRoles, check_base_program, unusable, with_captured
from ..ops.dims import prod
from ..ops.errors import OpstageError, ProgramWarning, ValidationError
from ..ops.mesh import ALONE, Mesh, mesh_of
from ..ops.places import Places
from ..ops.spec import Spec, as_specs, shapes_as_specs
from ..ops.trees import flatten, unflatten
from ..ops.types import DType, as_dtype, dtype_name, is_float
from ..optim import Optimizer
from ..optim.optimizer import Slot
from ..options import Options, options_of
from .by_name import by_position
from .parallel import DataParallel, shared_out
from .parameters import requires_grad_flags
from .sharding import DATA, Sharding, is_in_parts, is_shared
from .sharing import shared_findings
from .step import Clip, TrainingStep, named

if TYPE_CHECKING:
    from .state import TrainerState


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
    return with_captured(report_on(loss, params, *batch, options=options, **step)[0], loss, clip)


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


def report_on(
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
    program, mesh = with_train(loss, train), mesh_of(options.mesh) if train else ALONE
    if not mesh.is_alone:
        program, trees = DataParallel(program, skip - 1), shared_out(trees, mesh)
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
                if is_shared(shape, optimizer.at(name)):
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
    """A slot that is kept in that shape."""
    return Spec(shape, dtype_name(slot.dtype)).beginning((slot.fill, slot.fill))


def _in_parts(
    parameters: Sequence[Spec], dtype: DType, zero: int, ranks: int | str
) -> tuple[list[Spec], tuple[Any, ...]]:
    """Return the Specs of parameters as ranks keep them, and the full shapes of those that are sharded."""
    kept = [
        is_in_parts(spec.entries, dtype if spec.dtype is None else as_dtype(spec.dtype), zero) for spec in parameters
    ]
    specs = [
        spec.changed(shape=(_part_size(spec.entries, ranks),)) if parts else spec
        for spec, parts in zip(parameters, kept)
    ]
    return specs, tuple([spec.entries if parts else None for spec, parts in zip(parameters, kept)])


def _part_size(shape: tuple[Any, ...], ranks: int | str) -> int | str:
    """Return the size of a rank's part, as an entry of a Spec: see `sharding.part_shape`."""
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
        return report_on(
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
