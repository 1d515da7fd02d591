"""`ScalarModuleDef` and `ScalarModule`: a loss with its initial parameters, and that loss made runnable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, final

import numpy as np

from ..init import Declaration, Initialiser, Plan, build
from ..ops.errors import UsageError, a_type
from ..ops.hints import Renamed
from ..ops.static_arguments import plain
from ..ops.tied_parameters import Places
from ..ops.trees import flatten
from ..ops.types import TensorType
from ..optim import Optimizer
from ..options import Options, options_of
from .accumulate import Accumulate
from .finite import require_finite_loss, require_finite_values
from .param import Param
from .parameters import as_param, plan_params, require_apart, requires_grad_flags
from .parameters import cast as in_dtype
from .state import OptimizerState
from .trainer import ScalarTrainer, scalar_trainer

Sample = tuple[Any, ...]
"""The batch arguments of one call of the loss."""


@final
@dataclass(frozen=True)
class ScalarModuleDef(Renamed):
    """A module before it runs anywhere: initial parameters and a loss written once.

    init    a pytree of arrays and Params, or of `init.Declaration`s (shape and initialiser)
    loss    (ops, params, *batch) -> scalar

    Arrays are copied. A Param stays the one that it is: at several places it is one parameter, and modules that
    `instantiate` makes share it. An array at several places is an error.

    Raises:
        UsageError: instantiate: parameters that are not arrays of numbers; options that are none.
    """

    init: Any
    loss: Callable[..., Any]

    def instantiate(self, options: Options | None = None, *, requires_grad: Any = None) -> ScalarModule:
        """Return the module with the parameters of `init`, in `options.dtype`."""
        options = options_of(options)
        params = plan_params(Plan.of(self.init), self.init, options) if self._declares() else self.init
        return ScalarModule.create(self.loss, params, options, requires_grad=requires_grad)

    def instantiate_with(
        self, cast: Callable[[Any], Any], options: Options | None = None, *, requires_grad: Any = None
    ) -> ScalarModule:
        """Make each parameter from `cast(array)` of its float64 initial value, to change precision or to perturb it."""
        options = options_of(options)
        if not callable(cast):
            raise UsageError(f"instantiate_with takes a function of an array, but got {a_type(cast)}")
        require_apart(self.init)
        values = build(self.init, dtype="float64", seed=options.seed) if self._declares() else self.init
        leaves, structure = flatten(values)
        places = Places.among(structure, leaves)
        flags = requires_grad_flags(values, requires_grad, options)
        params = [
            as_param(_cast(leaf, cast), name, flag, options)
            for leaf, name, flag in zip(places.first(leaves), places.names, flags)
        ]
        return ScalarModule.create(self.loss, places.tree(params), options)

    def instantiate_with_plan(self, options: Options, plan: Plan, *, requires_grad: Any = None) -> ScalarModule:
        """Return the module with parameters from a plan instead of `init`. Its shapes are checked before any is
        created.

        They are made where the options have them stand: with device="cuda" on the device, and not on the host.
        """
        params = plan_params(plan if isinstance(plan, Plan) else Plan(plan), self.init, options)
        return ScalarModule.create(self.loss, params, options, requires_grad=requires_grad)

    def instantiate_with_init(
        self, options: Options, initialisers: Iterable[Initialiser], *, requires_grad: Any = None
    ) -> ScalarModule:
        """`instantiate_with_plan` from a plain list, one initialiser per parameter in the order in which `init` was
        written."""
        made = list(initialisers) if isinstance(initialisers, Iterable) else initialisers
        return self.instantiate_with_plan(options, Plan(made), requires_grad=requires_grad)

    def _declares(self) -> bool:
        return any(isinstance(leaf, Declaration) for leaf in flatten(self.init)[0])


@final
class ScalarModule(Renamed):
    """A loss with parameters on an interpreter: `ScalarTrainer` with the methods of a module.

    Raises:
        ValidationError: a loss that is not a scalar, or whose shapes are wrong.
    """

    def __init__(self, trainer: ScalarTrainer):
        self.trainer = trainer

    @classmethod
    def create(
        cls,
        loss: Callable[..., Any],
        params: Any,
        options: Options | None = None,
        *specs: Any,
        requires_grad: Any = None,
        accumulate: int | Accumulate | None = None,
    ) -> ScalarModule:
        """Return the module of an explicit loss and parameter values; see `opstage.scalar_trainer`."""
        more: dict[str, Any] = {"requires_grad": requires_grad, "accumulate": accumulate}
        return cls(scalar_trainer(loss, params, *specs, options=options, **more))

    def forward(self, *batch: Any) -> Any:
        """Return the loss."""
        return self.trainer.forward(*batch)

    def backward(self, *batch: Any) -> Any:
        """Gradients, shaped like the parameters; None where frozen."""
        return self.trainer.backward(*batch)

    def step(self, lr: float, *batch: Any) -> Any:
        """Take one SGD step; return the loss."""
        return self.trainer.step(lr, *batch)

    def init_optim(self, optimizer: Optimizer) -> OptimizerState:
        """Return the state in which an optimizer starts on these parameters."""
        return self.trainer.init_optim(optimizer)

    def step_with(self, optimizer: Optimizer, state: OptimizerState, *batch: Any) -> OptimizerState:
        """Take one step of an optimizer; return its next state."""
        return self.trainer.step_with(optimizer, state, *batch)

    def params(self) -> Any:
        """Return the parameter values, a tree of arrays."""
        return self.trainer.get_params()

    def set_params(self, params: Any) -> None:
        """Overwrite all parameter values by those of a tree, or of an `init.Plan`; see `ScalarTrainer.set_params`."""
        self.trainer.set_params(params)

    def train_sgd(
        self,
        lr: float,
        steps: int,
        samples: Iterable[Sample],
        log_every: int = 1,
        log: Callable[[str], None] | None = print,
        *,
        require_finite: bool = True,
    ) -> None:
        """`steps` SGD steps over the samples in turn; says step and loss every `log_every` steps (never, if 0).

        On shapes alone the steps are checked, the loss is its type, and nothing changes.

        With `require_finite` a loss that is nan or infinite raises NotFiniteError after its step, and so do parameters
        that are when the last step is done.
        """
        self._train(partial(self.trainer.step, lr), steps, samples, log_every, log, require_finite)
        if require_finite and self.trainer.executes:
            require_finite_values(self.trainer.unfetched())

    def train_with(
        self,
        optimizer: Optimizer,
        state: OptimizerState,
        steps: int,
        samples: Iterable[Sample],
        log_every: int = 1,
        log: Callable[[str], None] | None = print,
        *,
        require_finite: bool = True,
    ) -> OptimizerState:
        """`train_sgd` with any optimizer, from `state`; returns the state after the last step."""

        def step(*batch: Any) -> Any:
            nonlocal state
            result = self.trainer.train_step(optimizer, state, *batch)
            state = result.state
            return result.loss

        self._train(step, steps, samples, log_every, log, require_finite)
        if require_finite and self.trainer.executes:
            require_finite_values(self.trainer.unfetched(), self.trainer.unfetched_optim(optimizer, state))
        return state

    def _train(
        self,
        step: Callable[..., Any],
        steps: int,
        samples: Iterable[Sample],
        log_every: int,
        log: Callable[[str], None] | None,
        require_finite: bool,
    ) -> None:
        """Take `steps` steps, of which each returns its loss, over the samples in turn."""
        samples = _checked_samples(steps, samples, log_every)
        for i in range(steps):
            batch = _batch(samples[i % len(samples)])
            loss = step(*batch)
            if log is not None and log_every and ((i + 1) % log_every == 0 or i + 1 == steps):
                log(f"step {i + 1}/{steps}  loss {_shown(loss)}")
            if require_finite:
                _require_finite(loss, self.trainer.steps_taken, batch)

    def mean_loss(self, samples: Iterable[Sample]) -> Any:
        """Mean of the loss over the samples; never updates anything.

        It is a float, with dtype "exact" a Fraction, and on shapes alone the type of the loss.
        """
        samples = _checked_samples(0, samples, 0)
        losses = [plain(self.trainer.forward(*_batch(sample))) for sample in samples]
        if isinstance(losses[0], TensorType):
            return losses[0]
        return sum(losses) / len(losses) if isinstance(losses[0], Fraction) else float(np.mean(losses))


def _cast(leaf: Any, cast: Callable[[Any], Any]) -> Any:
    """`cast` of a parameter's value in float64."""
    return cast(in_dtype(leaf.value if isinstance(leaf, Param) else leaf, "float64"))


def _batch(sample: Any) -> tuple[Any, ...]:
    return sample if isinstance(sample, tuple) else (sample,)


def _checked_samples(steps: int, samples: Iterable[Any], log_every: int) -> Sequence[Any]:
    for name, count in {"steps": steps, "log_every": log_every}.items():
        if not isinstance(count, (int, np.integer)) or count < 0:
            raise UsageError(f"{name} must be an integer that is at least 0 but is {count!r}")
    if not isinstance(samples, Iterable):
        raise UsageError(f"samples are tuples of batch arguments, in a list, but got {a_type(samples)}")
    found: Any = samples if hasattr(samples, "__getitem__") and hasattr(samples, "__len__") else list(samples)
    if len(found) == 0:
        raise UsageError("argument samples: expected at least one sample, got an empty list")
    listed: Sequence[Any] = found
    return listed


def _shown(loss: Any) -> str:
    """Return a loss as text; on shapes alone its type, and a fraction that is more than a float can hold as it is."""
    try:
        return str(loss) if isinstance(loss, TensorType) else f"{float(loss):.6g}"
    except OverflowError:
        return str(loss)


def _require_finite(loss: Any, step: int, batch: tuple[Any, ...]) -> None:
    if loss.dtype.kind == "f" and not isinstance(loss, TensorType):  # fractions always are
        require_finite_loss(float(loss), step, batch)
