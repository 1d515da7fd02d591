"""`OptimizerState`: the state of an optimizer, and the optimizer and parameters that it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from ..api import owned
from ..interpreters.interpreter import BaseInterpreter
from ..ops.errors import UsageError
from ..ops.trees import show_path
from ..ops.types import DType, Shape, TensorType
from ..ops.untrusted import a_type
from .commit import Commit
from .optim import Optimizer, Slot
from .saved import Unfetched, require_fit
from .sharding import fetched

Values: TypeAlias = "tuple[tuple[Any, ...], ...]"
"""The slots of each trained parameter."""


class TrainedParameter(NamedTuple):
    """A parameter that an optimizer updates, and the types of its slots."""

    path: str
    shape: Shape
    dtype: DType
    slots: tuple[tuple[Shape, DType], ...]


class StateLayout(NamedTuple):
    """The owner of a state: the optimizer by its `state_name`, and the trained parameters in order."""

    optimizer: str
    parameters: tuple[TrainedParameter, ...]

    @classmethod
    def of(cls, optimizer: Optimizer, names: Sequence[str], types: Sequence[tuple[Shape, DType]]) -> StateLayout:
        """The layout of the state of `optimizer` for parameters of these paths and types."""
        parameters = [
            TrainedParameter(name, shape, dtype, tuple([(slot.shape, slot.dtype) for slot in slots]))
            for name, (shape, dtype), slots in zip(names, types, optimizer.init(types, names), strict=True)
        ]
        return cls(optimizer.state_name, tuple(parameters))

    def declared(self, optimizer: Optimizer) -> list[tuple[Slot, ...]]:
        """Return the slots that `optimizer`, which must have this layout, declares for the parameters."""
        return optimizer.init([each[1:3] for each in self.parameters], [each.path for each in self.parameters])

    def require(self, other: StateLayout) -> None:
        """Raise a UsageError that says how layout `other` differs from this one."""
        if other.optimizer != self.optimizer:
            raise UsageError(
                f"the optimizer state is that of {other.optimizer}, but the optimizer is {self.optimizer}; "
                "make its own with init_optim"
            )
        expected, found = (
            {each.path: TensorType(each.shape, each.dtype) for each in layout.parameters} for layout in (self, other)
        )
        what = f"the parameters of the state of {self.optimizer}, against those that are trained here,"
        require_fit(what, {path: (type_.shape, type_.dtype) for path, type_ in expected.items()}, found)
        if list(expected) != list(found):
            raise UsageError(f"{what} come in another order; make a state for this trainer with init_optim")
        for mine, theirs in zip(self.parameters, other.parameters):
            if mine.slots != theirs.slots:
                raise UsageError(
                    f"the state of {self.optimizer} has {len(theirs.slots)} slots for {show_path(mine.path)} that are "
                    f"not the {len(mine.slots)} that it is declared with now; make a state with init_optim"
                )


@final
class OptimizerState:
    """The state of an optimizer: the number of steps taken and each trained parameter's slots (moments).

    t        steps taken
    layout   the optimizer and parameters that it belongs to; a step rejects a state of others

    `init_optim` and steps create it. `advance` updates it in place, moments included; `step_with` and `train_step`
    leave it unchanged and return a new one. Copies and pickles have moments of their own. The moments live on the
    interpreter of the trainer that made them; another trainer of the same parameters may continue from them.
    """

    __slots__ = ("t", "layout", "_held")

    def __init__(self, t: int, slots: Sequence[Sequence[Any]], layout: StateLayout | None = None):
        """Build from host arrays, which are copied. A state without a layout is rejected by every optimizer."""
        self.t = t
        self.layout = layout
        values = tuple([tuple([np.array(slot) for slot in each]) for each in slots])
        self._held: tuple[BaseInterpreter[Any] | None, Values] = None, values  # whose values they are; None: arrays

    @classmethod
    def on(cls, home: BaseInterpreter[Any], t: int, values: Values, layout: StateLayout) -> OptimizerState:
        """Build from values of the interpreter `home`; the caller must hold no other reference to them."""
        state = cls(t, (), layout)
        state._held = home, values
        return state

    @property
    def slots(self) -> Values:
        """The slots of each trained parameter, as arrays that the caller owns."""
        home, values = self._held
        if home is None:
            return tuple([tuple([np.array(slot) for slot in each]) for each in values])
        assert self.layout is not None
        shapes = [[shape for shape, _ in each.slots] for each in self.layout.parameters]
        return tuple([tuple([_whole(home, *pair) for pair in zip(*pairs)]) for pairs in zip(values, shapes)])

    def unfetched(self) -> Values:
        """Return the current `slots`, each fetched to the host when it is read; see `Param.unfetched`."""
        held, (home, values) = self._held, self._held
        assert self.layout is not None

        def one(ref: Any, shape: Any, dtype: DType) -> Unfetched:
            def fetch() -> Any:
                return ref if home is None else fetched(home, ref, shape)

            joins = home is not None and tuple(ref.shape) != tuple(shape)
            return Unfetched(tuple(shape), dtype, fetch, lambda: self._held is held, joins=joins)

        types = [each.slots for each in self.layout.parameters]
        return tuple([tuple([one(ref, *t) for ref, t in zip(*pair)]) for pair in zip(values, types)])

    def values(self, home: BaseInterpreter[Any]) -> Values:
        """Return the slots as values of `home`: those that the state holds, or copies put there."""
        here, values = self._held
        return values if here is home else tuple([tuple(map(home.put, each)) for each in self.slots])

    def prepare(self, commit: Commit, home: BaseInterpreter[Any], t: int, values: Values) -> None:
        """Add the change to step t, with these values of `home`, to `commit`."""
        commit.set(self, "_held", (home, values))
        commit.set(self, "t", t)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.t, self.slots, self.layout)

    def __repr__(self) -> str:
        if self.layout is None:
            return f"<OptimizerState of nobody, t = {self.t}>"
        return f"<OptimizerState of {self.layout.optimizer} on {len(self.layout.parameters)} parameters, t = {self.t}>"


def _whole(home: BaseInterpreter[Any], ref: Any, shape: Shape) -> Any:
    """Return a slot, joined from the ranks' parts if it is sharded, as an array that the caller owns; see
    `sharding`."""
    return owned(fetched(home, ref, shape))


def require_state(state: Any, layout: StateLayout) -> None:
    """Raise a UsageError unless `state` is an optimizer state of this layout."""
    if type(state) is not OptimizerState:
        raise UsageError(
            f"a step takes the optimizer's state before the batch, but got {a_type(state)}; "
            "make it with init_optim(optimizer)"
        )
    if state.layout is None:
        raise UsageError(
            "this optimizer state does not say of which optimizer and parameters it is; make it with init_optim, or "
            "copy one that was made there"
        )
    if state.layout is not layout:
        layout.require(state.layout)


def require_optimizer(optimizer: Any) -> None:
    """Raise a UsageError unless `optimizer` is an Optimizer."""
    if not isinstance(optimizer, Optimizer):
        made = f"{optimizer.__name__} itself" if isinstance(optimizer, type) else a_type(optimizer)
        raise UsageError(f"the optimizer must be one of opstage.optim, such as optim.adam(lr=1e-3), but is {made}")
