"""`ScalarTrainer`: a scalar loss, its parameters, and the interpreter that the options name.

Every method runs one base program on that interpreter. A step is all or nothing: the program computes new parameters
and state beside the old ones, and only `_commit`, which an interrupt cannot cut in two, puts them in their place.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

import numpy as np

from ..api import argument_paths, owned, put_all, with_train
from ..init import Constant
from ..interpreters.anomaly import execute_watched, watched
from ..interpreters.base_program import BaseProgram
from ..interpreters.derivatives import run_on_tape
from ..interpreters.interpreter import BaseInterpreter
from ..interpreters.registry import make_interpreter
from ..interpreters.shape_check import Contract, Finding, Report
from ..ops.errors import DeviceError, ProgramWarning, UsageError, ValidationError
from ..ops.spec import Spec, as_specs
from ..ops.trees import Structure, align, flatten, paths, structure_paths, unflatten
from ..ops.types import dtype_name
from ..options import Options
from . import optim
from .commit import uninterrupted
from .optim import Optimizer
from .param import Param
from .parameters import as_param, get_values, requires_grad_flags, set_values
from .saved import OptimizerValues, TrainerValues, require_fit
from .step import Clip, LossProgram, forward_program, gradient_program, step_program
from .validate import check_step


@final
@dataclass(frozen=True)
class OptimizerState:
    """Where an optimizer stands: steps taken, and each trained parameter's slots (moments) as interpreter values."""

    t: int
    slots: tuple[tuple[Any, ...], ...]


@final
@dataclass(frozen=True)
class StepResult:
    """What one training step gave."""

    loss: Any
    metrics: Mapping[str, Any]
    state: OptimizerState


@final
class ScalarTrainer:
    """Training of `loss(ops, params, *batch)`; see `scalar_trainer`, which makes one."""

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
        leaves, self._structure = flatten(params)
        self._names = paths(params)
        flags = requires_grad_flags(params, requires_grad, options)
        self._params = [as_param(leaf, name, flag, options) for leaf, name, flag in zip(leaves, self._names, flags)]
        self.options = options
        self.steps_taken = 0
        self.last_metrics: Mapping[str, Any] = {}
        self._loss = loss
        self._loss_when = {train: with_train(loss, train) for train in (False, True)}
        self._clip = clip
        self._has_state = state is not None
        self._interpreter = _interpreter(options)
        self._state_leaves, self._state_structure = flatten(state)
        self._state_leaves = [self._interpreter.put(leaf) for leaf in self._state_leaves]
        self._contract = Contract(specs, batch_names(loss, specs, skip=3 if self._has_state else 2))
        self._moments: dict[str, OptimizerState] = {}
        self._warned: set[tuple[Hashable, ...]] = set()
        if options.validate and specs:
            self._validate(specs)

    # Reading and writing parameters ---------------------------------------------------------------------------------

    @property
    def params(self) -> Any:
        """The parameter tree, its leaves `Param`s."""
        return unflatten(self._structure, self._params)

    @property
    def executes(self) -> bool:
        """Whether the interpreter computes numbers; on shapes alone a step is a dry run."""
        return self._interpreter.executes

    @property
    def parameter_count(self) -> int:
        """Elements in all parameters."""
        return sum(int(np.prod(param.shape, dtype=np.int64)) for param in self._params)

    def get_params(self) -> Any:
        """The parameter values, a tree of arrays of the caller's own."""
        return get_values(self.params)

    def set_params(self, params: Any) -> None:
        """Overwrite all parameter values; structure, shapes and numbers are checked before any is touched."""
        set_values(self.params, params)

    @property
    def state(self) -> Any:
        """The program's own state (running statistics), a tree of arrays; None for a program without."""
        return unflatten(self._state_structure, [owned(self._interpreter.get(leaf)) for leaf in self._state_leaves])

    def set_state(self, state: Any) -> None:
        """Overwrite the program's own state."""
        leaves = align(self._state_structure, state, "the trainer's state", "the new state")
        self._state_leaves = [self._interpreter.put(leaf) for leaf in leaves]

    # Running --------------------------------------------------------------------------------------------------------

    def forward(self, *batch: Any, train: bool = False) -> Any:
        """The loss of one batch; nothing is differentiated or changed. In evaluation form unless `train`."""
        program = forward_program(self._program(train))
        loss, metrics = self._run(program, batch, lambda refs: (self._values(), *refs), key=("forward", train))
        self.last_metrics = metrics
        return loss

    def evaluate(self, program: Callable[..., Any], *batch: Any) -> Any:
        """Another program of these parameters in evaluation form, `(ops, params, [state,] *batch)`, any batch."""
        key = ("evaluate", program)
        structure, has_state, program = self._structure, self._has_state, with_train(program, False)

        def base(ops: Any, leaves: Any, state: Any, arrays: Any) -> Any:
            params = unflatten(structure, leaves)
            trees = (params, state, *arrays) if has_state else (params, *arrays)
            _, _, outputs, shape = run_on_tape(ops, program, trees, (False,) * len(trees))
            return unflatten(shape, [node.value for node in outputs])

        return self._run(base, batch, lambda refs: (self._values(), *refs), promised=False, key=key)

    def loss_and_backward(self, *batch: Any) -> tuple[Any, Any]:
        """Loss and gradients of one batch, in training form; gradients are shaped like params, None where frozen."""

        def base(ops: Any, leaves: Any, state: Any, arrays: Any) -> Any:
            loss, aux, grads = gradient_program(self._program(True))(ops, leaves, state, arrays)
            return loss, dict(aux.metrics), grads

        loss, self.last_metrics, grads = self._run(
            base, batch, lambda refs: (self._values(), *refs), key=("loss_and_backward",)
        )
        pulled = iter(grads)
        whole = [next(pulled) if param.requires_grad else None for param in self._params]
        return loss, unflatten(self._structure, whole)

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

    def init_optim(self, optimizer: Optimizer) -> OptimizerState:
        """The state in which an optimizer starts: t = 0, slots as it declares them for each trained parameter."""
        _, declared = self._declared(optimizer)
        return OptimizerState(0, tuple(tuple(map(self._first_moment, each)) for each in declared))

    def step_with(self, optimizer: Optimizer, state: OptimizerState, *batch: Any) -> OptimizerState:
        """One step of an optimizer from `state`; returns the next state and leaves `state` as it was."""
        return self.train_step(optimizer, state, *batch).state

    def train_step(self, optimizer: Optimizer, state: OptimizerState, *batch: Any) -> StepResult:
        """`step_with`, with the loss and metrics of the batch beside the next state."""
        return self._train_step(optimizer, state, batch)

    def advance(self, optimizer: Optimizer, state: OptimizerState, *batch: Any) -> StepResult:
        """`train_step` that moves `state` itself on, and may do so in the memory of its moments.

        A step that raises or is interrupted leaves parameters and `state` both as they were or both moved on.
        """
        return self._train_step(optimizer, state, batch, moved=True)

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
        trained = [param for param in self._params if param.requires_grad]
        if len(state.slots) != len(trained):
            raise UsageError(
                f"the optimizer state is for {len(state.slots)} parameters but {len(trained)} are trained; "
                "make it with init_optim of this trainer"
            )
        scalars = {name: np.asarray(value) for name, value in optimizer.scalars(state.t + 1).items()}
        _check_scalars(scalars)
        program = step_program(self._program(True), optimizer, self._clip)
        put = self._interpreter.put

        def arguments(refs: tuple[Any, ...]) -> tuple[Any, ...]:
            slots = [tuple(slot) for slot in state.slots]
            return (values, slots, {name: put(value) for name, value in scalars.items()}, *refs)

        values = self._values()
        spare = {i: p.lends(self._interpreter) for i, p in enumerate(self._params) if p.requires_grad}
        if moved:
            spare |= dict.fromkeys(range(len(values), len(values) + sum(map(len, state.slots))), True)
        ran, outputs = self._execute(program, batch, arguments, key=("step", optimizer.program_key), spare=spare)
        loss, aux, new, slots = unflatten(_structure(ran), outputs)
        for param, value in zip(trained, new):
            param.accept(value)
        t, slots, leaves = state.t + 1, tuple(map(tuple, slots)), flatten(aux.state)[0]

        def move_on() -> None:
            if moved:
                object.__setattr__(state, "slots", slots)  # no one else may change it
                object.__setattr__(state, "t", t)
            if self._interpreter.executes:
                self._commit(trained, new, leaves)

        with uninterrupted():
            ran.finish()
            try:
                loss, metrics = self._host(loss), {name: self._host(value) for name, value in aux.metrics.items()}
            except DeviceError:
                if ran.finishes:  # it has written over what the step began with
                    move_on()
                raise
            move_on()
            result = StepResult(loss, metrics, state if moved else OptimizerState(t, slots))
            if named is not None:
                self._moments[named] = result.state
        self.last_metrics = metrics
        return result

    def trim(self) -> None:
        """Give memory that a device keeps for the next step back to the system; parameters and moments stay."""
        self._interpreter.trim()

    def in_front(self, stand: Callable[[BaseInterpreter[Any]], BaseInterpreter[Any]]) -> BaseInterpreter[Any]:
        """Let `stand(interpreter)`, a `Transparent`, take the place of this trainer's interpreter."""
        self._interpreter = stand(self._interpreter)
        return self._interpreter

    # Leaving and coming back ----------------------------------------------------------------------------------------

    def export(self) -> TrainerValues:
        """All that the next step depends on besides loss, options and optimizer, as arrays of the caller's own."""
        return TrainerValues(
            {name: np.array(param.value) for name, param in zip(self._names, self._params)},
            dict(zip(structure_paths(self._state_structure), map(self._host, self._state_leaves))),
            self.steps_taken,
            {name: self.export_optim(_NAMED[name], state) for name, state in self._moments.items()},
        )

    def export_optim(self, optimizer: Optimizer, state: OptimizerState) -> OptimizerValues:
        """An optimizer's state on these parameters as arrays of the caller's own."""
        names, _ = self._declared(optimizer)
        slots = (tuple(self._host(ref) for ref in each) for each in state.slots)
        return OptimizerValues(optimizer.name, state.t, dict(zip(names, slots, strict=True)))

    def import_optim(self, optimizer: Optimizer, saved: OptimizerValues) -> OptimizerState:
        """The state that `export_optim` gave out; a UsageError says where it fits neither optimizer nor parameters."""
        if saved.name != optimizer.name:
            raise UsageError(f"the saved optimizer state is that of {saved.name}, not of {optimizer.name}")
        names, declared = self._declared(optimizer)
        expected = {f"{n} slot {i}": (s.shape, s.dtype) for n, each in zip(names, declared) for i, s in enumerate(each)}
        found = {f"{n} slot {i}": slot for n, each in saved.slots.items() for i, slot in enumerate(each)}
        require_fit(f"the saved moments of {saved.name}", expected, found)
        slots = (tuple(self._interpreter.put(np.array(x)) for x in saved.slots.get(name, ())) for name in names)
        return OptimizerState(saved.t, tuple(slots))

    def restore(self, saved: TrainerValues) -> None:
        """Stand where `export` was called; all is checked, to the dtype, before any is touched."""
        require_fit(
            "the saved parameters",
            {name: (param.shape, param.dtype) for name, param in zip(self._names, self._params)},
            saved.params,
        )
        state_names = structure_paths(self._state_structure)
        require_fit(
            "the saved values of the state",
            {name: (ref.shape, ref.dtype) for name, ref in zip(state_names, self._state_leaves)},
            saved.state,
        )
        moments = {name: self.import_optim(_NAMED[name], values) for name, values in saved.moments.items()}
        state = [self._interpreter.put(saved.state[name]) for name in state_names]
        with uninterrupted():
            for name, param in zip(self._names, self._params):
                param.set(saved.params[name])
            self._state_leaves = state
            self._moments = moments
            self.steps_taken = saved.steps_taken

    # How it is done -------------------------------------------------------------------------------------------------

    def _declared(self, optimizer: Optimizer) -> tuple[list[str], list[tuple[optim.Slot, ...]]]:
        """The paths of the trained parameters and the slots that `optimizer` declares for each."""
        trained = [(name, param) for name, param in zip(self._names, self._params) if param.requires_grad]
        names = [name for name, _ in trained]
        return names, optimizer.init([(param.shape, param.dtype) for _, param in trained], names)

    def _first_moment(self, slot: optim.Slot) -> Any:
        shape: Any = slot.shape  # of a parameter, so of numbers
        return self._interpreter.fill(Constant(slot.fill), shape, slot.dtype)

    def _named_step(self, name: str, optimizer: Optimizer, batch: tuple[Any, ...]) -> Any:
        state = self._moments.get(name) or self.init_optim(optimizer)
        return self._train_step(optimizer, state, batch, moved=True, named=name).loss

    def _commit(self, trained: Sequence[Param], values: Sequence[Any], state: list[Any]) -> None:
        """Put what a step has given in its place: nothing but assignments."""
        for param, value in zip(trained, values):
            param.commit_accepted(value, self._interpreter, alone=True)
        self._state_leaves = state if self._has_state else []
        self.steps_taken += 1

    def _program(self, train: bool) -> LossProgram:
        trained = tuple(param.requires_grad for param in self._params)
        return LossProgram(self._loss_when[train], self._structure, trained, self._has_state)

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
        promised: bool = True,
        key: tuple[Hashable, ...],
    ) -> Any:
        """What a base program gives on (…, state, batch), on the host."""
        ran, outputs = self._execute(base, batch, arguments, promised=promised, key=key)
        return unflatten(_structure(ran), [self._host(ref) for ref in outputs])

    def _execute(
        self,
        base: Callable[..., Any],
        batch: tuple[Any, ...],
        arguments: Callable[[tuple[Any, ...]], tuple[Any, ...]],
        *,
        promised: bool = True,
        key: tuple[Hashable, ...],
        spare: Mapping[int, bool] = MappingProxyType({}),
    ) -> tuple[BaseProgram, tuple[Any, ...]]:
        """Run a base program on (…, state, batch): the program, and values of the interpreter, once it is finished.

        `key` tells this trainer's programs apart; `spare` are leaves that may be written over, see `BaseProgram`.

        A batch is held to the trainer's contract where it is `promised`: for programs that take what the loss does.
        """
        arrays, batch_structure = flatten(batch)
        refs = put_all(self._interpreter, arrays, lambda: argument_paths(self._loss, (None, *batch)))
        if promised:
            self._contract.check(batch, arrays, refs, self._validate_batch)
        state = unflatten(self._state_structure, self._state_leaves)
        leaves, structure = flatten(arguments((state, unflatten(batch_structure, refs))))
        trained = tuple(param.requires_grad for param in self._params)
        program = BaseProgram(base, structure, (*key, trained), spare)
        return program, execute_watched(self._interpreter, program, tuple(leaves), self.options, self.steps_taken)

    def report(self, *specs: Any, optimizer: Optimizer | None = None) -> Report:
        """The shape checker's report on one whole training step, for batches of `specs`; see `check_step`."""
        state = unflatten(self._state_structure, [_type_spec(leaf) for leaf in self._state_leaves])
        return check_step(
            self._loss,
            unflatten(self._structure, [_type_spec(param) for param in self._params]),
            *specs,
            optimizer=optimizer,
            state=state if self._has_state else None,
            options=self.options,
            requires_grad=[param.requires_grad for param in self._params],
            clip=self._clip,
        )

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

    params          a pytree of arrays or Params; arrays are copied
    specs           one pytree of Specs per batch argument: the trainer's contract. Inside it any size will do, outside
                    it is an error. Without any, each new batch shape is validated when it first comes
    requires_grad   which parameters are trained: one bool, or a pytree or list of bools aligned with params
    state           for a loss with state, `(ops, params, state, *batch) -> (loss, Aux(state=…))`, its first value
    clip            a program (ops, gradients) -> gradients, see opstage.optim.clip

    With `options.validate` the whole training step is checked on shapes first; a ValidationError holds the report. What
    is merely odd, such as a parameter that never reaches the loss, is a ProgramWarning.
    """
    return ScalarTrainer(loss, params, specs, options if options is not None else Options(), requires_grad, state, clip)


def batch_names(loss: Callable[..., Any], specs: tuple[Any, ...], *, skip: int) -> list[str]:
    """Names of the batch arguments' leaves, by the loss's own parameter names."""
    return argument_paths(loss, (*(None,) * (skip - 1), *specs)) if specs else []


# The optimizers behind the steps that keep their own moments; hyperparameters do not change which slots there are.
_NAMED: dict[str, Optimizer] = {"sgd": optim.sgd(), "adam": optim.adam(), "adamw": optim.adamw()}


def _interpreter(options: Options) -> BaseInterpreter[Any]:
    return watched(make_interpreter(options), options)


def _structure(ran: BaseProgram) -> Structure:
    """That of what a program returned."""
    assert ran.result is not None
    return ran.result


def _type_spec(value: Any) -> Spec:
    return Spec(tuple(value.shape), dtype_name(value.dtype))


def _check_scalars(scalars: Mapping[str, Any]) -> None:
    lr = float(scalars["lr"])
    if not math.isfinite(lr) or lr < 0:
        raise UsageError(f"learning rate must be finite and at least 0 but is {lr}")
