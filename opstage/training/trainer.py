"""`ScalarTrainer`: a scalar loss, its parameters, and the interpreter that the options name.

Every method runs one base program on that interpreter. A step is all or nothing: the program computes new parameters
and state beside the old ones, and only a `Commit`, which nothing can cut in two, puts them in their place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, final

import numpy as np

from ..api import BatchArguments, argument_paths, batch_arguments, owned, put_all, snapshot, with_train
from ..init import Constant
from ..interpreters.anomaly import execute_watched, watched
from ..interpreters.base_program import BaseProgram, Identity
from ..interpreters.derivatives import run_on_tape
from ..interpreters.interpreter import BaseInterpreter
from ..interpreters.registry import make_interpreter
from ..interpreters.shape_check import Contract, Finding, Report
from ..ops.errors import DeviceError, LocatedError, ProgramWarning, UsageError, ValidationError
from ..ops.places import Places
from ..ops.spec import Spec, as_specs
from ..ops.trees import Structure, align, flatten, lists_as_arrays, structure_paths, unflatten
from ..ops.types import DType, dtype_name, is_float
from ..options import Options
from . import optim
from .by_name import by_position
from .commit import Commit, uninterrupted
from .hyperparameters import require_real
from .optim import Optimizer
from .optimizer_state import Layout, OptimizerState, require_optimizer, require_state
from .parameters import as_param, get_values, requires_grad_flags, same_bits, set_values, together
from .saved import OptimizerValues, TrainerValues, require_fit
from .sharing import require_apart
from .step import Clip, LossProgram, forward_program, gradient_program, step_program
from .turns import in_turn
from .validate import report_on, training_layout


@final
@dataclass(frozen=True)
class StepResult:
    """What one training step gave."""

    loss: Any
    metrics: Mapping[str, Any]
    state: OptimizerState


@final
class ScalarTrainer:
    """Training of `loss(ops, params, *batch)`; see `scalar_trainer`, which makes one.

    Threads may share it: its methods run one at a time, as do those of all trainers and sessions with a parameter in
    common.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        params: Any,
        specs: tuple[Any, ...],
        options: Options,
        requires_grad: Any,
        state: Any,
        clip: Clip | None,
    ):
        params, state = lists_as_arrays(params), lists_as_arrays(state)
        leaves, structure = flatten(params)
        require_apart(params)
        flags = requires_grad_flags(params, requires_grad, options)
        self._places = Places.among(structure, leaves)
        self._names = self._places.names
        firsts = self._places.first(leaves)
        self._params = [as_param(leaf, name, flag, options) for leaf, name, flag in zip(firsts, self._names, flags)]
        self._turns = together(self._params)
        self.options = options
        self.steps_taken = 0
        self.last_metrics: Mapping[str, Any] = {}
        self._loss = loss
        self._loss_when = {train: with_train(loss, train) for train in (False, True)}
        self._clip = clip
        self._has_state = state is not None
        self._interpreter = _interpreter(options)
        specs = by_position(specs, loss, 3 if self._has_state else 2)
        self._state_leaves, self._state_structure = flatten(state)
        self._state_leaves = [self._interpreter.put(snapshot(leaf)) for leaf in self._state_leaves]
        self._contract = Contract(specs, batch_names(loss, specs, skip=3 if self._has_state else 2))
        self._moments: dict[str, OptimizerState] = {}
        self._layouts: dict[tuple[Hashable, ...], Layout] = {}
        self._warned: set[tuple[Hashable, ...]] = set()
        if options.validate and specs:
            self._validate(specs)

    # Reading and writing parameters ---------------------------------------------------------------------------------

    @property
    def params(self) -> Any:
        """The parameter tree, its leaves `Param`s."""
        return self._places.tree(self._params)

    @property
    def executes(self) -> bool:
        """Whether the interpreter computes numbers; on shapes alone a step is a dry run."""
        return self._interpreter.executes

    @property
    def batch_starts(self) -> int:
        """Before which of the arguments of its programs the batch begins: after ops, parameters and any state."""
        return 3 if self._has_state else 2

    @property
    def batch_arguments(self) -> BatchArguments | None:
        """The names of the loss's batch arguments; None where it does not say them."""
        return batch_arguments(self._loss, skip=self.batch_starts)

    @property
    def parameter_count(self) -> int:
        """Elements in all parameters, each counted once, at however many places it stands."""
        return sum(int(np.prod(param.shape, dtype=np.int64)) for param in self._params)

    @in_turn
    def get_params(self) -> Any:
        """The parameter values, a tree of arrays of the caller's own; one, read-only, for several places."""
        return get_values(self.params)

    @in_turn
    def set_params(self, params: Any) -> None:
        """Overwrite all parameter values; structure, shapes and numbers are checked before any is touched.

        Raises UsageError where the places of one parameter are given values that differ.
        """
        set_values(self.params, params)

    @property
    @in_turn
    def state(self) -> Any:
        """The program's own state (running statistics), a tree of arrays; None for a program without."""
        return unflatten(self._state_structure, [owned(self._interpreter.get(leaf)) for leaf in self._state_leaves])

    @in_turn
    def set_state(self, state: Any) -> None:
        """Overwrite the program's own state; structure, shapes and dtypes are checked before any is touched."""
        leaves = align(self._state_structure, state, "the trainer's state", "the new state")
        self._state_leaves = self._fitting_state("the values of the new state", leaves)

    # Running --------------------------------------------------------------------------------------------------------

    @in_turn
    def forward(self, *batch: Any, train: bool = False) -> Any:
        """The loss of one batch; nothing is differentiated or changed. In evaluation form unless `train`."""
        batch = by_position(batch, self._loss, self.batch_starts)
        program = forward_program(self._program(train))
        loss, metrics = self._run(program, batch, lambda refs: (self._values(), *refs), key=("forward", train))
        self.last_metrics = metrics
        return loss

    @in_turn
    def evaluate(self, program: Callable[..., Any], *batch: Any) -> Any:
        """Another program of these parameters in evaluation form, `(ops, params, [state,] *batch)`, any batch."""
        batch = by_position(batch, program, self.batch_starts, "the program")
        key = ("evaluate", Identity(program))
        user, program = program, with_train(program, False)
        places, has_state = self._places, self._has_state

        def base(ops: Any, leaves: Any, state: Any, arrays: Any) -> Any:
            params = places.tree(leaves)
            trees = (params, state, *arrays) if has_state else (params, *arrays)
            _, _, outputs, shape = run_on_tape(ops, program, trees, (False,) * len(trees))
            return unflatten(shape, [node.value for node in outputs])

        return self._run(base, batch, lambda refs: (self._values(), *refs), other=user, key=key)

    @in_turn
    def loss_and_backward(self, *batch: Any) -> tuple[Any, Any]:
        """Loss and gradients of one batch, in training form; gradients are shaped like params, None where frozen.

        A parameter at several places has one gradient, their sum: one read-only array, which stands at all of them.
        """
        batch = by_position(batch, self._loss, self.batch_starts)
        program = gradient_program(self._program(True))

        def base(ops: Any, leaves: Any, state: Any, arrays: Any) -> Any:
            loss, aux, grads = program(ops, leaves, state, arrays)
            return loss, dict(aux.metrics), grads

        loss, self.last_metrics, grads = self._run(
            base, batch, lambda refs: (self._values(), *refs), key=("loss_and_backward",)
        )
        pulled = iter(grads)
        whole = [next(pulled) if param.requires_grad else None for param in self._params]
        return loss, self._places.arrays(whole)

    def backward(self, *batch: Any) -> Any:
        """Gradients of one batch, shaped like params; None where frozen."""
        return self.loss_and_backward(*batch)[1]

    def step(self, lr: float, *batch: Any) -> Any:
        """One SGD step p ← p - lr·g; returns the loss."""
        return self._named_step("sgd", optim.sgd(lr=lr), batch)

    def adam_step(self, lr: float, beta1: float, beta2: float, eps: float, *batch: Any) -> Any:
        """One Adam step, its moments kept by this trainer; returns the loss."""
        return self._named_step("adam", optim.adam(lr=lr, betas=(beta1, beta2), eps=eps), batch)

    def adamw_step(self, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, *batch: Any) -> Any:
        """One AdamW step (decoupled weight decay), its moments kept by this trainer; returns the loss."""
        optimizer = optim.adamw(lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay)
        return self._named_step("adamw", optimizer, batch)

    @in_turn
    def init_optim(self, optimizer: Optimizer) -> OptimizerState:
        """The state in which an optimizer starts: t = 0, slots as it declares them for each trained parameter."""
        layout = self._layout(optimizer)
        values = tuple(tuple(map(self._first_moment, slots)) for slots in layout.declared(optimizer))
        return OptimizerState.on(self._interpreter, 0, values, layout)

    def step_with(self, optimizer: Optimizer, state: OptimizerState, *batch: Any) -> OptimizerState:
        """One step of an optimizer from `state`; returns the next state and leaves `state` as it was.

        Raises UsageError for a state of another optimizer, or of other parameters.
        """
        return self.train_step(optimizer, state, *batch).state

    def train_step(self, optimizer: Optimizer, state: OptimizerState, *batch: Any) -> StepResult:
        """`step_with`, with the loss and metrics of the batch beside the next state."""
        return self._train_step(optimizer, state, batch)

    def advance(self, optimizer: Optimizer, state: OptimizerState, *batch: Any) -> StepResult:
        """`train_step` that moves `state` itself on, and may do so in the memory of its moments.

        A step that raises or is interrupted leaves parameters and `state` both as they were or both moved on.
        """
        return self._train_step(optimizer, state, batch, moved=True)

    @in_turn
    def _train_step(
        self,
        optimizer: Optimizer,
        state: OptimizerState,
        batch: tuple[Any, ...],
        *,
        moved: bool = False,
        named: str | None = None,
    ) -> StepResult:
        """A step that moves `state` on if `moved`, and keeps it as this trainer's own if it is `named`."""
        batch = by_position(batch, self._loss, self.batch_starts)
        layout = self._layout(optimizer)
        require_state(state, layout)
        trained = [param for param in self._params if param.requires_grad]
        moments = state.values(self._interpreter)
        scalars = {name: np.asarray(require_real(name, v)) for name, v in optimizer.scalars(state.t + 1).items()}
        program = step_program(self._program(True), optimizer, self._clip)
        put = self._interpreter.put

        batch_refs: list[Any] = []

        def arguments(refs: tuple[Any, ...]) -> tuple[Any, ...]:
            batch_refs.extend(flatten(refs[1:])[0])
            return (values, list(moments), {name: put(value) for name, value in scalars.items()}, *refs)

        values = self._values()
        spare = {i: p.lends(self._interpreter) for i, p in enumerate(self._params) if p.requires_grad}
        if moved:
            spare |= dict.fromkeys(range(len(values), len(values) + sum(map(len, moments))), True)
        ran, outputs = self._execute(program, batch, arguments, key=("step", optimizer.program_key), spare=spare)
        loss, aux, new, slots = unflatten(_structure(ran), outputs)
        for param, value in zip(trained, new):
            param.accept(value)
        t, slots, leaves = state.t + 1, tuple(map(tuple, slots)), _apart(flatten(aux.state)[0], batch_refs)
        following = state if moved else OptimizerState.on(self._interpreter, t, slots, layout)
        commit = Commit()
        if moved:
            state.prepare(commit, self._interpreter, t, slots)
        if self._interpreter.executes:
            for param, value in zip(trained, new):
                param.prepare_accepted(commit, value, self._interpreter, alone=True)
            commit.set(self, "_state_leaves", leaves if self._has_state else [])
            commit.set(self, "steps_taken", self.steps_taken + 1)
        if named is not None:
            commit.set(self, "_moments", {**self._moments, named: following})
        if not ran.finishes:
            result = self._read(loss, aux, following)  # what this raises has changed nothing
            commit.run()
        else:
            with uninterrupted():  # a device may be given its work call by call
                commit.run(ran.finish)
                try:
                    result = self._read(loss, aux, following)
                except DeviceError:  # it has written over what the step began with
                    raise
                except LocatedError:  # it has not, seeing that an index was out of range
                    commit.undo()
                    raise
        self.last_metrics = result.metrics
        return result

    def _read(self, loss: Any, aux: Any, following: OptimizerState) -> StepResult:
        loss = self._host(loss)
        return StepResult(loss, {name: self._host(value) for name, value in aux.metrics.items()}, following)

    @in_turn
    def trim(self) -> None:
        """Give memory that is kept for the next step back to the system; parameters, moments and programs stay."""
        self._interpreter.trim()

    @in_turn
    def in_front(self, stand: Callable[[BaseInterpreter[Any]], BaseInterpreter[Any]]) -> BaseInterpreter[Any]:
        """Let `stand(interpreter)`, a `Transparent`, take the place of this trainer's interpreter."""
        self._interpreter = stand(self._interpreter)
        return self._interpreter

    # Leaving and coming back ----------------------------------------------------------------------------------------

    @in_turn
    def export(self) -> TrainerValues:
        """All that the next step depends on besides loss, options and optimizer, as arrays of the caller's own."""
        return TrainerValues(
            {name: np.array(param.value) for name, param in zip(self._names, self._params)},
            dict(zip(structure_paths(self._state_structure), map(self._host, self._state_leaves))),
            self.steps_taken,
            {name: self.export_optim(_NAMED[name], state) for name, state in self._moments.items()},
            self._places.tied,
        )

    @in_turn
    def export_optim(self, optimizer: Optimizer, state: OptimizerState) -> OptimizerValues:
        """An optimizer's state on these parameters as arrays of the caller's own."""
        layout = self._layout(optimizer)
        require_state(state, layout)
        names = [each.path for each in layout.parameters]
        return OptimizerValues(layout.optimizer, state.t, dict(zip(names, state.slots, strict=True)))

    @in_turn
    def import_optim(self, optimizer: Optimizer, saved: OptimizerValues) -> OptimizerState:
        """The state that `export_optim` gave out; a UsageError says where it fits neither optimizer nor parameters."""
        layout = self._layout(optimizer)
        if saved.name != layout.optimizer:
            raise UsageError(f"the saved optimizer state is that of {saved.name}, not of {layout.optimizer}")
        names, what = [each.path for each in layout.parameters], f"the saved moments of {saved.name}"
        held = self._places.collapsed(
            saved.slots,
            what,
            lambda a, b: len(a) == len(b) and all(map(same_bits, a, b)),
            ", or take the parameters alone and begin with a new state",
        )
        expected = {f"{each.path} slot {i}": slot for each in layout.parameters for i, slot in enumerate(each.slots)}
        found = {f"{n} slot {i}": slot for n, each in held.items() for i, slot in enumerate(each)}
        require_fit(what, expected, found)
        slots = (tuple(self._interpreter.put(np.array(x)) for x in held.get(name, ())) for name in names)
        return OptimizerState.on(self._interpreter, saved.t, tuple(slots), layout)

    @in_turn
    def restore(self, saved: TrainerValues) -> None:
        """Stand where `export` was called; all is checked, to the dtype, before any is touched.

        Values that were saved for each place of what is one parameter here must be the same.
        """
        values = self._places.collapsed(saved.params, "the saved parameters", same_bits)
        require_fit(
            "the saved parameters",
            {name: (param.shape, param.dtype) for name, param in zip(self._names, self._params)},
            values,
            saved.tied,
        )
        state_names = structure_paths(self._state_structure)
        require_fit("the saved values of the state", self._state_types(), saved.state)
        for name in saved.moments:
            if name not in _NAMED:
                raise UsageError(f"there are saved moments of {name!r}; a trainer keeps those of {', '.join(_NAMED)}")
        moments = {name: self.import_optim(_NAMED[name], values) for name, values in saved.moments.items()}
        state = [self._interpreter.put(snapshot(saved.state[name])) for name in state_names]
        commit = Commit()
        for name, param in zip(self._names, self._params):
            param.prepare(commit, param.checked(values[name]))
        commit.set(self, "_state_leaves", state)
        commit.set(self, "_moments", moments)
        commit.set(self, "steps_taken", saved.steps_taken)
        commit.run()

    # How it is done -------------------------------------------------------------------------------------------------

    def _state_types(self) -> dict[str, tuple[Any, DType]]:
        names = structure_paths(self._state_structure)
        return {name: (ref.shape, ref.dtype) for name, ref in zip(names, self._state_leaves)}

    def _fitting_state(self, what: str, leaves: Sequence[Any]) -> list[Any]:
        """Values of a new state, copies of `leaves` that fit those of the one before; integers are taken for floats."""
        types, refs = self._state_types(), []
        for leaf, (_, dtype) in zip(leaves, types.values()):
            array = snapshot(leaf)
            if is_float(dtype) and array.dtype.kind in "iu":
                array = array.astype(np.float64)
            refs.append(self._interpreter.put(array))
        require_fit(what, types, dict(zip(types, refs)))
        return refs

    def _layout(self, optimizer: Optimizer) -> Layout:
        """Of the state in which `optimizer` moves the parameters that are trained now."""
        require_optimizer(optimizer)
        key = (optimizer.program_key, *[param.requires_grad for param in self._params])
        layout = self._layouts.get(key)
        if layout is None:
            trained = [(name, param) for name, param in zip(self._names, self._params) if param.requires_grad]
            types: list[tuple[Any, DType]] = [(param.shape, param.dtype) for _, param in trained]
            layout = Layout.of(optimizer, [name for name, _ in trained], types)
            if len(self._layouts) == _LAYOUTS:
                self._layouts.clear()
            self._layouts[key] = layout
        return layout

    def _first_moment(self, slot: optim.Slot) -> Any:
        shape: Any = slot.shape  # of a parameter, so of numbers
        return self._interpreter.fill(Constant(slot.fill), shape, slot.dtype)

    @in_turn
    def _named_step(self, name: str, optimizer: Optimizer, batch: tuple[Any, ...]) -> Any:
        state = self._moments.get(name)
        if state is None:
            state = self.init_optim(optimizer)
        elif state.layout is not (layout := self._layout(optimizer)):
            try:
                require_state(state, layout)
            except UsageError as error:
                raise UsageError(
                    f"{name}_step keeps moments of the parameters that were trained when it began, and now others are; "
                    f"to go on so, use step_with and a state of your own from init_optim: {error}"
                ) from None
        return self._train_step(optimizer, state, batch, moved=True, named=name).loss

    def _program(self, train: bool) -> LossProgram:
        trained = tuple(param.requires_grad for param in self._params)
        return LossProgram(self._loss_when[train], self._places, trained, self._has_state)

    def _values(self) -> list[Any]:
        return [param.mirror(self._interpreter) for param in self._params]

    def _host(self, ref: Any) -> Any:
        return owned(self._interpreter.get(ref))

    def _run(
        self,
        base: Callable[..., Any],
        batch: tuple[Any, ...],
        arguments: Callable[[tuple[Any, ...]], tuple[Any, ...]],
        *,
        other: Callable[..., Any] | None = None,
        key: tuple[Hashable, ...],
    ) -> Any:
        """What a base program gives on (…, state, batch), on the host."""
        ran, outputs = self._execute(base, batch, arguments, other=other, key=key)
        return unflatten(_structure(ran), [self._host(ref) for ref in outputs])

    def _execute(
        self,
        base: Callable[..., Any],
        batch: tuple[Any, ...],
        arguments: Callable[[tuple[Any, ...]], tuple[Any, ...]],
        *,
        other: Callable[..., Any] | None = None,
        key: tuple[Hashable, ...],
        spare: Mapping[int, bool] = MappingProxyType({}),
    ) -> tuple[BaseProgram, tuple[Any, ...]]:
        """Run a base program on (…, state, batch): the program, and values of the interpreter, once it is finished.

        `key` tells this trainer's programs apart; `spare` are leaves that may be written over, see `BaseProgram`.

        `other` is the user's program that takes the batch, where that is not the loss; then the trainer's contract,
        which is about the loss, is not asked.
        """
        batch = lists_as_arrays(batch)
        arrays, batch_structure = flatten(batch)
        refs = put_all(
            self._interpreter,
            arrays,
            lambda: argument_paths(other or self._loss, (*(None,) * (self.batch_starts - 1), *batch)),
        )
        if other is None:
            self._contract.check(batch, arrays, refs, self._validate_batch)
        state = unflatten(self._state_structure, self._state_leaves)
        leaves, structure = flatten(arguments((state, unflatten(batch_structure, refs))))
        trained = tuple(param.requires_grad for param in self._params)
        program = BaseProgram(base, structure, (*key, trained), spare)
        return program, execute_watched(self._interpreter, program, tuple(leaves), self.options, self.steps_taken)

    def report(self, *specs: Any, optimizer: Optimizer | None = None) -> Report:
        """The shape checker's report on one whole training step, for batches of `specs`; see `check_step`."""
        state = unflatten(self._state_structure, [_type_spec(leaf) for leaf in self._state_leaves])
        layout = partial(
            training_layout,
            self._loss,
            self.params,
            *specs,
            optimizer=optimizer,
            state=state if self._has_state else None,
            requires_grad=[param.requires_grad for param in self._params],
            clip=self._clip,
        )
        return report_on(lambda options: layout(options=options), self.options)[0]

    def _validate(self, specs: tuple[Any, ...]) -> None:
        report = self.report(*specs)
        if not report.ok:
            raise ValidationError(str(report), report)
        for finding in report.warnings:
            self._warn(finding)
        self._contract.assume(report.conditions)

    def _warn(self, finding: Finding) -> None:
        """A Python warning at the user's line, once for each, however many shapes of batches come."""
        key = (finding.rule, finding.op, finding.source)
        if key not in self._warned:
            self._warned.add(key)
            warning, source = ProgramWarning(str(finding), finding), finding.source
            if source is None:
                warnings.warn(warning, stacklevel=2)
            else:
                warnings.warn_explicit(warning, None, source.file, source.line)

    def _validate_batch(self, batch: tuple[Any, ...]) -> None:
        if self.options.validate:
            self._validate(tuple(as_specs(tree) for tree in batch))


def scalar_trainer(
    loss: Callable[..., Any],
    params: Any,
    *specs: Any,
    options: Options | None = None,
    requires_grad: Any = None,
    state: Any = None,
    clip: Clip | None = None,
) -> ScalarTrainer:
    """A trainer for `loss(ops, params, *batch) -> scalar`, on the interpreter that `options` name.

    params          a pytree of arrays or Params; arrays are copied, and a list of numbers is one, as in state and
                    batches. A Param at several places is one parameter: its gradient is the sum over them, and it is
                    updated, counted and saved once. An array at several places is an error, since nobody can know
                    whether one parameter or several are meant
    specs           one pytree of Specs per batch argument: the trainer's contract. Inside it any size will do, outside
                    it is an error. Without any, each new batch shape is validated when it first comes
    requires_grad   which parameters are trained: one bool, or a pytree or list of bools aligned with params
    state           for a loss with state, `(ops, params, state, *batch) -> (loss, Aux(state=…))`, its first value
    clip            a program (ops, gradients) -> gradients, see opstage.optim.clip

    Where the loss takes several batch arguments, one dict of them, or a Dataset, is a batch too, and so is one dict of
    their Specs: `trainer.step(0.1, {"y": labels, "x": images})`. A loss of one argument gets a dict as it is.

    With `options.validate` the whole training step is checked on shapes first; a ValidationError holds the report. What
    is merely odd, such as a parameter that never reaches the loss, is a ProgramWarning.
    """
    return ScalarTrainer(loss, params, specs, options if options is not None else Options(), requires_grad, state, clip)


def batch_names(loss: Callable[..., Any], specs: tuple[Any, ...], *, skip: int) -> list[str]:
    """Names of the batch arguments' leaves, by the loss's own parameter names."""
    return argument_paths(loss, (*(None,) * (skip - 1), *specs)) if specs else []


_LAYOUTS = 8
"""How many a trainer remembers: they follow from optimizers, of which a program may make a new one for every step."""

# The optimizers behind the steps that keep their own moments; hyperparameters do not change which slots there are.
_NAMED: dict[str, Optimizer] = {"sgd": optim.sgd(), "adam": optim.adam(), "adamw": optim.adamw()}


def _interpreter(options: Options) -> BaseInterpreter[Any]:
    return watched(make_interpreter(options), options)


def _structure(ran: BaseProgram) -> Structure:
    """That of what a program returned."""
    assert ran.result is not None
    return ran.result


def _apart(kept: list[Any], batch: Sequence[Any]) -> list[Any]:
    """Values that outlive a step, copied where they are arrays of its batch, which the caller may write over."""

    def shared(value: Any) -> bool:
        return any(isinstance(ref, np.ndarray) and np.may_share_memory(value, ref) for ref in batch)

    return [np.array(value) if isinstance(value, np.ndarray) and shared(value) else value for value in kept]


def _type_spec(value: Any) -> Spec:
    return Spec(tuple(value.shape), dtype_name(value.dtype))
