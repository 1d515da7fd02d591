"""`ScalarTrainer`: a scalar loss, its parameters, and the interpreter that the options name.

Every method runs one base program on that interpreter. A step is all or nothing: the program computes new parameters
and state without touching the old ones, and only a `Commit`, which is atomic, replaces those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, final

import numpy as np
from typing_extensions import deprecated

from .. import optim
from ..distributed.ranks import Ranks
from ..interpreters.shape_check.report import Report
from ..ops.errors import UsageError
from ..ops.hints import Renamed
from ..ops.mesh import parse_mesh
from ..ops.tracebacks import called_by_users
from ..ops.trees import flatten
from ..optim import Optimizer
from ..optim.groups import MovedParameter, group_table
from ..options import Options, options_of
from ..program_arguments import BatchArguments, batch_arguments
from ..transforms.interpreter import BaseInterpreter
from .accumulate import Accumulate, as_accumulate
from .commit import exclusive
from .executor import Executor, PreparedProgram, StepResult
from .parallel import shard_specs
from .parameters import get_values, set_values, together
from .snapshot import Array, OptimizerValues, TrainerValues
from .state import OptimizerState, RunningAverage, TrainerState, require_state
from .step import Clip
from .validate import BatchContract


@final
class ScalarTrainer(Renamed):
    """Training of `loss(ops, params, *batch)`; see `scalar_trainer`, which makes one.

    Threads may share it: its methods run one at a time, as do those of all trainers and sessions with a parameter in
    common.

    Raises:
        UsageError: step: a rate that is not a finite number.
        ValidationError: step: a loss that is not a scalar, or whose shapes are wrong.
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
        accumulate: int | Accumulate | None = None,
        gradient_norm: bool = False,
    ):
        self._made = loss, specs, options, clip, accumulate, gradient_norm
        self._state = TrainerState(params, state, requires_grad, options)
        self._locks = together(self._state.params)
        self.options = options
        self.last_metrics: Mapping[str, Any] = {}
        self._loss = loss
        self.specs = shard_specs(specs, parse_mesh(options.mesh))
        self._contract = BatchContract(loss, self.specs, options, self._state, clip)
        self._parts = as_accumulate(accumulate, options)
        self._executor = Executor(loss, self._state, self._contract, options, clip, self._parts, gradient_norm)

    @exclusive
    def __reduce__(self) -> tuple[Any, ...]:
        """Reduce for copies and pickles: a deep copy and an unpickled trainer are independent: parameters, state,
        moments and the number of steps are their own. A shallow copy trains the same parameters."""
        held = self._state
        state = held.get_state() if held.has_state else None
        moments = {name: copy(each) for name, each in held.moments.items()}  # a step moves them in place
        return _copied, (self._made, held.tree, state, moments, held.steps_taken)

    def own_rows(self, count: int) -> Any:
        """Return which rows of a batch of `count` the ranks of this process read, int64 indices; None: all of them.

        Of a batch that is computed in parts, see `accumulate`, each process takes all.
        """
        interpreter = self._state.interpreter
        return interpreter.own_rows(count) if type(interpreter) is Ranks and self._parts is None else None

    def connect(self) -> None:
        """Connect the GPUs of a mesh of several processes, as the first step does otherwise. All processes call it.

        Raises UsageError where two of them have one GPU.
        """
        interpreter = self._state.interpreter
        if type(interpreter) is Ranks:
            interpreter.connect()

    # Reading and writing parameters ---------------------------------------------------------------------------------

    @property
    def params(self) -> Any:
        """Return the parameter tree, its leaves `Param`s."""
        return self._state.tree

    @property
    def loss(self) -> Callable[..., Any]:
        """Return the program that is trained."""
        return self._loss

    @property
    def executes(self) -> bool:
        """Return whether the interpreter computes numbers; on shapes alone a step is a dry run."""
        return self._state.interpreter.executes

    @property
    def batch_starts(self) -> int:
        """Before which of the arguments of its programs the batch begins: after ops, parameters and any state."""
        return self._state.batch_starts

    @property
    def steps_taken(self) -> int:
        """Training steps that are behind it."""
        return self._state.steps_taken

    @steps_taken.setter
    def steps_taken(self, count: int) -> None:
        self._state.steps_taken = count

    @property
    def _interpreter(self) -> BaseInterpreter[Any]:
        return self._state.interpreter

    @property
    def batch_arguments(self) -> BatchArguments | None:
        """Return the names of the loss's batch arguments; None if it does not name them."""
        return batch_arguments(self._loss, skip=self.batch_starts)

    @property
    def parameter_count(self) -> int:
        """Return the number of elements of all parameters, each counted once, however many places it has."""
        return sum(int(np.prod(param.shape, dtype=np.int64)) for param in self._state.params)

    @exclusive
    def get_params(self) -> Any:
        """Return the parameter values, a tree of arrays that the caller owns; one, read-only, for several places."""
        return get_values(self.params)

    @exclusive
    def set_params(self, params: Any) -> None:
        """Overwrite all parameter values; structure, shapes and numbers are checked before any is touched.

        An `init.Plan` in place of a tree of arrays initialises them again, where the options have them stand: on a
        device no host array is made. Raises UsageError where the places of one parameter are given values that differ.
        """
        set_values(self.params, params, seed=self.options.seed)

    @property
    @exclusive
    def state(self) -> Any:
        """Return the program's own state (running statistics), a tree of arrays; None for a program without."""
        return self._state.get_state()

    @exclusive
    def set_state(self, state: Any) -> None:
        """Overwrite the program's own state; structure, shapes and dtypes are checked before any is touched."""
        self._state.set_state(state)

    # Running --------------------------------------------------------------------------------------------------------

    @exclusive
    def forward(self, *batch: Any, train: bool = False) -> Any:
        """Return the loss of one batch; nothing is differentiated or changed. In evaluation form unless `train`."""
        refs, structure = self._executor.bind_batch(batch)
        step = self._executor.choose_step(structure, train=train)
        (loss, self.last_metrics), _ = self._executor.evaluate(step.forward, step, refs)
        return loss

    def evaluate(self, program: Callable[..., Any], *batch: Any) -> Any:
        """Another program of these parameters in evaluation form, `(ops, params, [state,] *batch)`, any batch."""
        return self.evaluate_at(None, program, *batch)

    @exclusive
    def evaluate_at(self, average: RunningAverage | None, program: Callable[..., Any], *batch: Any) -> Any:
        """`evaluate`, of an average of the parameters in their place; None: of them as they are."""
        refs, structure = self._executor.bind_batch(batch, program)
        step = self._executor.choose_program(program, structure)
        values = None if average is None else average.average_values(self._state)
        return self._executor.evaluate(step.value, step, refs, values)[0]

    @exclusive
    def average(self, average: RunningAverage, decay: float) -> None:
        """Move an average towards the parameters as they are now: e ← e + (1 - decay)·(p - e); see `RunningAverage`."""
        average.move(self._state, decay)

    @exclusive
    def export_average(self, average: RunningAverage) -> dict[str, Array]:
        """Return an average of the parameters by their paths, arrays that the caller owns."""
        return average.export(self._state)

    @exclusive
    def evaluate_prepared(self, prepared: PreparedProgram, *arrays: Any) -> Any:
        """Return the result of `evaluate` for arrays that a prepared program fits; None if that is to be asked."""
        return prepared(arrays)

    @exclusive
    def prepare(self, program: Callable[..., Any], *batch: Any) -> PreparedProgram | None:
        """Return a quick call of what `evaluate` runs, for batches like this one; None if the interpreter has none."""
        return self._executor.prepare(program, *flatten(batch))

    @exclusive
    def loss_and_backward(self, *batch: Any) -> tuple[Any, Any]:
        """Return loss and gradients of one batch, in training form; gradients are shaped like params, None if frozen.

        A parameter at several places has one gradient, their sum: one read-only array, which is at all of them.
        """
        refs, structure = self._executor.bind_batch(batch)
        step = self._executor.choose_step(structure)
        (loss, self.last_metrics), gradients = self._executor.evaluate(step.gradient, step, refs)
        pulled = iter(gradients)
        return loss, step.places.arrays([next(pulled) if wanted else None for wanted in step.trained])

    def backward(self, *batch: Any) -> Any:
        """Return gradients of one batch, shaped like params; None if frozen."""
        return self.loss_and_backward(*batch)[1]

    @called_by_users
    def step(self, lr: float, *batch: Any) -> Any:
        """Take one SGD step p ← p - lr·g; return the loss."""
        return self._named_step("sgd", optim.sgd(lr=lr), batch)

    @called_by_users
    def adam_step(self, lr: float, beta1: float, beta2: float, eps: float, *batch: Any) -> Any:
        """Take one Adam step, whose moments this trainer stores; return the loss."""
        return self._named_step("adam", optim.adam(lr=lr, betas=(beta1, beta2), eps=eps), batch)

    @called_by_users
    def adamw_step(self, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, *batch: Any) -> Any:
        """Take one AdamW step (decoupled weight decay), whose moments this trainer stores; return the loss."""
        optimizer = optim.adamw(lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay)
        return self._named_step("adamw", optimizer, batch)

    @exclusive
    def init_optim(self, optimizer: Optimizer) -> OptimizerState:
        """Return the state in which an optimizer starts: t = 0, slots as it declares them for each trained
        parameter."""
        return self._state.init_optim(optimizer)

    def moved_by(self, optimizer: Optimizer) -> list[MovedParameter]:
        """Return the table of what moves each parameter. Raises UsageError if groups of the optimizer fit none
        of them."""
        state, bound = self._state, self._state.bind_optimizer(optimizer)
        return group_table(bound.optimizer, state.names, [param.shape for param in state.params], bound.trained)

    @called_by_users
    def step_with(self, optimizer: Optimizer, state: OptimizerState, *batch: Any) -> OptimizerState:
        """Take one step of an optimizer from `state`; return the next state and leave `state` unchanged.

        Raises UsageError for a state of another optimizer, or of other parameters.
        """
        return self.train_step(optimizer, state, *batch).state

    @exclusive
    def train_step(self, optimizer: Optimizer, state: OptimizerState, *batch: Any) -> StepResult:
        """`step_with`, with the loss and metrics of the batch as well as the next state."""
        return self._train_step(optimizer, state, batch)

    @exclusive
    def advance(self, optimizer: Optimizer, state: OptimizerState, *batch: Any) -> StepResult:
        """`train_step` that moves `state` itself on, and may do so in the memory of its moments.

        A step that raises or is interrupted leaves parameters and `state` both as they were or both moved on.
        """
        return self._train_step(optimizer, state, batch, in_place=True)

    def _train_step(
        self,
        optimizer: Optimizer,
        state: OptimizerState,
        batch: tuple[Any, ...],
        *,
        in_place: bool = False,
        name: str | None = None,
    ) -> StepResult:
        """Take a step that updates `state` if `in_place`, and stores it as this trainer's own under a `name`."""
        held, taken = self._state, self._state.steps_taken
        try:
            result = self._executor.train_step(optimizer, state, batch, in_place=in_place, name=name)
        except BaseException as error:
            if type(held.interpreter) is Ranks and held.steps_taken == taken:  # the others may have taken it
                held.interpreter.transport.leave_run(error)
            raise
        self.last_metrics = result.metrics
        return result

    def report(self, *specs: Any, optimizer: Optimizer | None = None) -> Report:
        """Return the shape checker's report on one whole training step, for batches of `specs`; see `check_step`."""
        return self._contract.report(*specs, optimizer=optimizer)

    @exclusive
    def empty_cache(self) -> None:
        """Release the memory that is cached for the next step; parameters, moments and programs stay."""
        self._interpreter.empty_cache()

    @deprecated("ScalarTrainer.trim is now ScalarTrainer.empty_cache")
    def trim(self) -> None:
        """Do what `empty_cache` does, under its old name."""
        self.empty_cache()

    @exclusive
    def in_front(self, stand: Callable[[BaseInterpreter[Any]], BaseInterpreter[Any]]) -> BaseInterpreter[Any]:
        """Let `stand(interpreter)`, a `Transparent`, take the place of this trainer's interpreter."""
        self._state.interpreter = stand(self._interpreter)
        return self._interpreter

    # Export and restore -------------------------------------------------------------------------------------------

    @exclusive
    def export(self) -> TrainerValues:
        """Return all that the next step depends on besides loss, options and optimizer, as arrays that the
        caller owns."""
        return self._state.export()

    @exclusive
    def export_optim(self, optimizer: Optimizer, state: OptimizerState) -> OptimizerValues:
        """Return an optimizer's state on these parameters as arrays that the caller owns."""
        return self._state.export_optim(optimizer, state)

    @exclusive
    def unfetched(self) -> TrainerValues:
        """`export` of tensors that are fetched one by one as they are read, until the next step; see `Unfetched`."""
        return self._state.export(fetch=False)

    @exclusive
    def unfetched_optim(self, optimizer: Optimizer, state: OptimizerState) -> OptimizerValues:
        """`export_optim` of tensors that are fetched as they are read, until the next step."""
        return self._state.export_optim(optimizer, state, fetch=False)

    @exclusive
    def import_optim(self, optimizer: Optimizer, saved: OptimizerValues) -> OptimizerState:
        """Return the state that `export_optim` gave out; a UsageError says where it fits neither optimizer nor
        parameters."""
        return self._state.import_optim(optimizer, saved)

    @exclusive
    def restore(self, saved: TrainerValues) -> None:
        """Stand where `export` was called; all is checked, to the dtype, before any is touched.

        Values that were saved for each place of what is one parameter here must be the same.
        """
        self._state.restore(saved)

    # Implementation -------------------------------------------------------------------------------------------------

    @exclusive
    def _named_step(self, name: str, optimizer: Optimizer, batch: tuple[Any, ...]) -> Any:
        state = self._state.moments.get(name)
        if state is None:
            state = self._state.init_optim(optimizer)
        elif state.layout is not (layout := self._state.bind_optimizer(optimizer).layout):
            try:
                require_state(state, layout)
            except UsageError as error:
                raise UsageError(
                    f"{name}_step keeps moments of the parameters that were trained when it began, and now others are; "
                    f"to continue, use step_with and a state of your own from init_optim: {error}"
                ) from None
        return self._train_step(optimizer, state, batch, in_place=True, name=name).loss


def _copied(made: tuple[Any, ...], params: Any, state: Any, moments: dict[str, Any], steps: int) -> ScalarTrainer:
    loss, specs, options, *rest = made
    copied = ScalarTrainer(loss, params, specs, options, None, state, *rest)
    copied._state.moments, copied.steps_taken = moments, steps
    return copied


@called_by_users
def scalar_trainer(
    loss: Callable[..., Any],
    params: Any,
    *specs: Any,
    options: Options | None = None,
    requires_grad: Any = None,
    state: Any = None,
    clip: Clip | None = None,
    accumulate: int | Accumulate | None = None,
    gradient_norm: bool = False,
) -> ScalarTrainer:
    """Return a trainer for `loss(ops, params, *batch) -> scalar`, on the interpreter that `options` name.

    params          a pytree of arrays or Params; arrays are copied, and a list of numbers is one, as in state and
                    batches. A Param at several places is one parameter: its gradient is the sum over them, and it is
                    updated, counted and saved once. An array at several places is an error, since nobody can know
                    whether one parameter or several are meant
    specs           one pytree of Specs per batch argument: the trainer's contract. Inside it any size will do, outside
                    it is an error. Without any, each new batch shape is validated when it first comes
    requires_grad   which parameters are trained: one bool, a pytree of bools like params, a list of them in the
                    order in which params was written, or patterns of paths, `{"encoder.*": False}`
    state           for a loss with state, `(ops, params, state, *batch) -> (loss, Aux(state=…))`, its first value
    clip            a program (ops, gradients) -> gradients, see opstage.optim.clip
    accumulate      in how many parts each training step computes its batch, one after the other: the memory of a part,
                    the gradient of the whole batch; see `Accumulate`
    gradient_norm   whether each step gives √Σ g² over all gradients, before clipping; no bit of it all depends on that

    Where the loss takes several batch arguments, one dict of them, or a Dataset, is a batch too, and so is one dict of
    their Specs: `trainer.step(0.1, {"y": labels, "x": images})`. A loss of one argument gets a dict as it is.

    With `options.validate` the whole training step is checked on shapes first; a ValidationError holds the report. What
    is merely odd, such as a parameter that never reaches the loss, is a ProgramWarning.

    Raises:
        UsageError: parameters that are not arrays of numbers; options that are none.
    """
    options = options_of(options)
    return ScalarTrainer(loss, params, specs, options, requires_grad, state, clip, accumulate, gradient_norm)
