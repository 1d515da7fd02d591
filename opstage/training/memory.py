"""The memory of a training step, predicted from shapes, and the largest size that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, final

from ..compiler.gpu.device import GRID
from ..compiler.gpu.memory import Tally
from ..interpreters.eager_cuda import CudaOps, DeviceBuffer
from ..interpreters.graph.cpu.plan import CpuPlan, optimise
from ..interpreters.graph.cuda.executor import CompiledCudaOps, CudaExecutor
from ..interpreters.graph.recorder import record
from ..interpreters.shape_check.allocations import KernelRun, MemoryOps
from ..interpreters.shape_check.peak_memory import AllocationTrace, Formula, MemoryKind, PeakMemory
from ..models import Model
from ..ops.dims import DimScope
from ..ops.errors import ShapeError, UsageError, a_type
from ..ops.host_arrays import DEVICE_DTYPES, no_wire_form
from ..ops.readable_amounts import parse_bytes, show_bytes
from ..ops.spec import Spec, sized
from ..ops.trees import flatten
from ..ops.types import EXACT, TensorType, as_dtype
from ..optim import Optimizer
from ..options import Options, options_of
from ..transforms.base_program import BaseProgram
from .sizes import MOST, around, dim_names, largest, near, sample_sizes
from .step import UPDATE, Clip, TrainingStep
from .validate import PlannedStep, training_step

__all__ = ["StepMemory", "model_memory", "step_memory"]
__dir__ = __all__.copy

_TOO_MUCH = 1 << 62
_LINES = 4
"""How often a guess of the largest size is drawn nearer by a line: few rows say little of many."""

_KINDS = (MemoryKind.PARAMETERS, MemoryKind.STATE, MemoryKind.BATCH, MemoryKind.OPTIMIZER, MemoryKind.BATCH)
"""The kinds of the inputs of a step, group by group; its scalars count as batch."""


@final
class StepMemory:
    """The tensor memory of one training step (forward, backward and update) in steady state, after earlier steps.

    `at` predicts for given sizes, `formula` returns the peak as a formula in the named dims, and `largest` the largest
    size of one of them that fits. Nothing is computed and no tensor is allocated.

    On the cpu it counts NumPy's arrays, and not the Python interpreter, libraries, machine code or memory that the C
    library retains after free. On a device it counts the tensors there, without the driver's own memory; no GPU is
    needed.
    """

    def __init__(self, step: PlannedStep, options: Options):
        """Create a prediction. Raises UsageError if memory is not predicted for the dtype or device."""
        if as_dtype(options.dtype) == EXACT:
            raise UsageError("the numbers of dtype exact are objects of Python, whose memory is not predicted")
        if options.backend not in ("eager", "compiled"):
            raise UsageError(
                f"memory is predicted for the backends 'eager' and 'compiled', not for {options.backend!r}"
            )
        if options.use_gpu and as_dtype(options.dtype) not in DEVICE_DTYPES:
            raise UsageError(no_wire_form(as_dtype(options.dtype)))
        if not step.mesh.is_alone and (options.backend != "eager" or options.use_gpu):
            raise UsageError("the memory of a rank of a mesh is predicted for backend 'eager' on the cpu alone")
        self.step = step
        self.options = options
        # the sizes of a mesh are named dims of the step too, as if from a tensor that is never allocated
        self._specs = (*step.specs, *[Spec((name,), where=(f"{name} >= 2",)) for name in step.mesh.open])
        self.names = dim_names(self._specs)
        self._kinds = [kind for kind, count in zip(_KINDS, step.layout.counts) for _ in range(count)]

    @property
    def has_formula(self) -> bool:
        """Return whether the peak can be given as a formula."""
        return self.options.backend == "eager" and self.options.device == "cpu"

    # Queries ---------------------------------------------------------------------------------------------------------

    def at(self, **sizes: int) -> PeakMemory:
        """Return the peak memory, with a size for every named dim.

        Raises UsageError for a name that is missing or unknown, and for sizes that the Specs do not allow; ShapeError
        if a tensor is too large for the device.
        """
        self._require_all(sizes)
        if self.options.use_gpu:
            return self._on_device(sizes)
        if self.options.backend == "compiled":
            return self._compiled(sizes)
        return PeakMemory.of(self._history(sizes, {}).peak({}))

    def formula(self, **sizes: int) -> Formula:
        """Return the eager interpreter's peak in bytes, as a formula in the named dims that are not given.

        The choice and tiling of kernels depend on sizes; the formula assumes moderate sizes, an error below one
        percent. Raises UsageError for the compiled interpreter, which plans memory for numeric sizes, and for a device,
        which counts it at numeric sizes.
        """
        if not self.has_formula:
            how = "compiled interpreter is planned" if self.options.device == "cpu" else "device 'cuda' is counted"
            raise UsageError(f"the memory of the {how} at numbers, so a formula is not supported; use at(…)")
        sample = sample_sizes(self._specs, sizes)
        return self._history(sizes, sample).formula(sample)

    def largest(self, name: str, memory: str | int, **sizes: int) -> int:
        """Return the largest size of `name` that needs at most `memory`, such as "24GiB"; the other sizes are given.

        Solved from the formula, or without one by lines through two predictions; then checked that it fits and the next
        size does not. Raises UsageError if not even 1 fits.
        """
        limit = parse_bytes(memory)
        if name in sizes:
            raise UsageError(f"{name} is the size to find, so give numbers for the others only")
        self._require_all({name: 1, **sizes})
        predicted = cache(lambda size: self._needed({**sizes, name: size}))
        guess = self._guess(name, limit, sizes, predicted)
        found = largest(self._specs, sizes, name, lambda size: predicted(size) <= limit, guess)
        if not found:
            at = "".join(f", {other}={size}" for other, size in sizes.items())
            least = self.at(**{**sizes, name: 1}).needed
            raise UsageError(f"not even {name}=1{at} fits {show_bytes(limit)}: it takes {show_bytes(least)}")
        return found

    # How they are answered ------------------------------------------------------------------------------------------

    def _require_all(self, sizes: Mapping[str, int]) -> None:
        sized(self._specs, {name: size for name, size in sizes.items() if name not in self.names}, "the step")
        missing = [name for name in self.names if name not in sizes]
        if missing:
            raise UsageError(f"the memory depends on {', '.join(missing)}: give a number, {missing[0]}=…")

    def _needed(self, sizes: Mapping[str, int]) -> int:
        """Return the bytes that must be free, or more than exist if a tensor is too large for the device."""
        try:
            return self.at(**sizes).needed
        except ShapeError:
            return _TOO_MUCH

    def _guess(self, name: str, limit: int, sizes: Mapping[str, int], predicted: Callable[[int], int]) -> int:
        """Return an estimate of the largest size that needs at most `limit`."""
        if self.has_formula:
            formula = self.formula(**sizes)
            guess = around(1, MOST, lambda size: formula({name: size}) <= limit)
            try:
                beyond = predicted(guess) - limit if guess else 0
            except UsageError:  # a size that the constraints do not allow
                return guess
            return guess - beyond * guess // limit
        first = sample_sizes(self._specs, sizes)[name]
        while first > 1 and not self._is_answered(first, predicted):
            first //= 2
        guess, other = first, max(1, first // 2)
        for _ in range(_LINES if self._is_answered(other, predicted) else 0):
            at, slope = guess, (predicted(guess) - predicted(other)) // ((guess - other) or 1)
            guess, other = max(1, at + (limit - predicted(at)) // max(1, slope)), first
            if guess in (at, other) or not self._is_answered(guess, predicted):
                break
        return guess

    @staticmethod
    def _is_answered(size: int, predicted: Callable[[int], int]) -> bool:
        """Return whether the constraints allow a size, and no tensor of it is too large for the device."""
        try:
            return predicted(size) != _TOO_MUCH
        except UsageError:
            return False

    def _types(self, sizes: Mapping[str, int], scope: DimScope) -> list[TensorType]:
        """Return the types of the inputs of a step."""
        specs = sized(self._specs, sizes, "the step")
        types = [spec.bind(scope, as_dtype(self.options.dtype)) for spec in specs]
        for spec in specs:
            spec.declare(scope)
        return types[: len(self.step.specs)]

    def _program(self, ops: Any, *refs: Any) -> tuple[Any, ...]:
        return tuple(self.step.layout.program(ops, *refs)[0])

    def kernel_runs(self, watch: Callable[[KernelRun], None], **sizes: int) -> None:
        """Call `watch` with every kernel of a step on the eager interpreter, in order."""
        self._require_all(sizes)
        self._history(sizes, {}, watch)

    def plan(self, **sizes: int) -> CpuPlan:
        """Return the plan of the compiled step, with a size for every named dim. Its kernels are not compiled."""
        self._require_all(sizes)
        types = self._types(sizes, DimScope())
        graph = record(self._program, types, as_dtype(self.options.dtype), self.options.seed)
        return CpuPlan(optimise(graph)[0].body, donated=self.step.layout.donated())

    def _history(
        self, sizes: Mapping[str, int], sample: Mapping[str, int], watch: Callable[[KernelRun], None] | None = None
    ) -> AllocationTrace:
        """Return the allocations of a step on the eager interpreter; `sample` has sizes for the names that stay
        symbolic."""
        scope = DimScope()
        types = self._types(sizes, scope)
        samples = [sample, *near(self._specs, sizes, sample)]
        mesh = self.step.mesh.bound(lambda name: sizes.get(name) or scope.dim(name))
        ops = MemoryOps(self.options, scope, samples, {UPDATE: MemoryKind.RESULTS}, mesh)
        ops.watch = watch
        refs = tuple([ops.new(type_, kind) for type_, kind in zip(types, self._kinds)])
        results = ops.execute_each(self._program, refs)
        history = ops.history()
        del results  # alive until this point
        return history

    def _on_device(self, sizes: Mapping[str, int]) -> PeakMemory:
        """Return the memory of a step on a device that only counts."""

        return device_memory(self.step.layout, self.options, self._types(sizes, DimScope()), self._kinds)

    def _compiled(self, sizes: Mapping[str, int]) -> PeakMemory:
        """Return the memory of the compiled step: that of its plan and its inputs."""
        types, plan = self._types(sizes, DimScope()), self.plan(**sizes)
        given = dict.fromkeys([kind.name.lower() for kind in _KINDS], 0)
        for type_, kind in zip(types, self._kinds):
            given[kind.name.lower()] += _nbytes(type_)
        results = sum(_nbytes(plan.lowered.types[slot]) for slot in plan.results if slot not in plan.aliased)
        workspace = plan.table_bytes + sum(constant.nbytes for constant in plan.constants)
        return PeakMemory(**given, results=results, workspace=workspace, arena=plan.arena_bytes)


def _nbytes(type_: TensorType) -> int:
    nbytes: Any = type_.nbytes
    return int(nbytes)


def step_memory(
    loss: Callable[..., Any],
    params: Any,
    *batch: Any,
    optimizer: Optimizer | None = None,
    state: Any = None,
    options: Options | None = None,
    requires_grad: Any = None,
    clip: Clip | None = None,
) -> StepMemory:
    """Return the memory of a training step of `loss(ops, params, *batch)`, from Specs; arguments as in `check_step`.

    Raises:
        UsageError: an optimizer that is none.
    """
    _require_optimizer(optimizer)
    options = options_of(options)
    step = training_step(
        loss, params, *batch, optimizer=optimizer, state=state, options=options, requires_grad=requires_grad, clip=clip
    )
    return StepMemory(step, options)


def model_memory(
    model: Model, optimizer: Optimizer, options: Options | None = None, clip: Clip | None = None
) -> StepMemory:
    """Return the memory of a training step of a model with declared parameters, which are not created.

    Raises:
        UsageError: a model or an optimizer that is none.
    """
    if not isinstance(model, Model):
        raise UsageError(f"model_memory takes an opstage.Model, not {a_type(model)}")
    _require_optimizer(optimizer)
    loss, more = model.require_loss(), {"state": model.state, "options": options, "clip": clip}
    return step_memory(loss, model.init, *model.batch, optimizer=optimizer, **more)


def _require_optimizer(optimizer: object) -> None:
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise UsageError(f"optimizer={optimizer!r} is none of opstage.optim")


# On a GPU: the step runs on a device that computes nothing ------------------------------------------------------------

STEPS = 5
"""After this many steps, compiled steps reuse all memory of the step before."""


def device_memory(
    layout: TrainingStep, options: Options, types: Sequence[TensorType], kinds: Sequence[MemoryKind]
) -> PeakMemory:
    """Return the peak memory of a step with numeric inputs of these types and kinds.

    Raises ShapeError if a tensor is too large for a device.
    """
    tally = Tally(grid=GRID)
    ops: Any = CompiledCudaOps(options, tally) if options.backend == "compiled" else CudaOps(options, tally)
    held = {i: tally.empty_of(types[i], kind) for i, kind in enumerate(kinds) if kind is not MemoryKind.BATCH}

    def kind() -> MemoryKind:
        region = ops.cursor.region.path
        if options.backend == "compiled" or (region and region[0][0] == UPDATE):
            return MemoryKind.RESULTS
        return MemoryKind.GRADIENTS if ops.cursor.backward else MemoryKind.ACTIVATIONS

    tally.kind = kind
    for _ in range(STEPS):
        tally.begin()
        _advance(layout, ops, tally, types, kinds, held)
    found = {kind.name.lower(): tally.at_peak[kind] for kind in MemoryKind}
    if options.backend == "compiled":
        executor = ops.programs.executors[-1]
        found["arena"] = executor.plan.arena_bytes if isinstance(executor, CudaExecutor) else 0
        found["results"] -= found["arena"]
    return PeakMemory(**found, blocks=tally.blocks)


def _advance(
    layout: TrainingStep,
    ops: Any,
    tally: Tally,
    types: Sequence[TensorType],
    kinds: Sequence[MemoryKind],
    held: dict[int, DeviceBuffer],
) -> None:
    """Run a step as a trainer does, with the buffers in `held`, and update them with its results."""
    refs = [held[i] if i in held else tally.empty_of(type_, kinds[i]) for i, type_ in enumerate(types)]
    program = BaseProgram(layout.program, None, "step", layout.donated())
    outputs = ops.execute(program, tuple(refs))
    assert program.result is not None
    stepped = layout.unpack(outputs, program.result)
    program.finish(())
    for ref in (stepped.loss, *stepped.metrics.values()):
        ops.get(ref)
    state, slots = (
        [i for i, kind in enumerate(kinds) if kind is part] for part in (MemoryKind.STATE, MemoryKind.OPTIMIZER)
    )
    moved = layout.pack(flatten(stepped.state)[0], stepped.parameters, (), stepped.slots)
    for i, ref in zip((*state, *layout.trained_indices, *slots), moved):
        held[i] = ref
        tally.rename(ref.memory, kinds[i])
