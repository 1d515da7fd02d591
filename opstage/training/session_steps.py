"""Optimizer steps of a session: update the parameters used on its tape by their gradients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple, final
from weakref import WeakKeyDictionary

from ..interpreters.imperative import Imperative
from ..interpreters.interpreter import Interpreter
from ..interpreters.tape import Node
from ..ops.types import DType
from .commit import Commit
from .gradients import Gradients
from .optim import Optimizer
from .param import Param, prepare_moved


class _State:
    """The state of one optimizer for one parameter: steps taken, and slots (moments) as values of the interpreter."""

    __slots__ = ("now",)

    def __init__(self, t: int, slots: tuple[Any, ...]):
        self.now = t, slots


class _Updated(NamedTuple):
    """The update of one parameter by the optimizer of that name: its new value and slots, as refs of the base."""

    param: Param
    optimizer: str
    state: _State
    t: int
    refs: tuple[Any, ...]


@final
class SessionSteps:
    """The state of each optimizer for each parameter, kept while the session and the parameter live."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: defaultdict[str, WeakKeyDictionary[Param, _State]] = defaultdict(WeakKeyDictionary)

    def take(
        self, base: Imperative[Any], nodes: Mapping[Param, Node[Any]], gradients: Gradients, optimizer: Optimizer
    ) -> None:
        """Step the trained parameters among `nodes` on the tape; either all of them change or none."""
        paths = {param: param.name or f"<{i}>" for i, param in enumerate(nodes)}
        optimizer = optimizer.bound([(path,) for path in paths.values()])
        store = base.store
        numbers: dict[tuple[int, int, DType], dict[str, Any]] = {}  # of a step, for all parameters that take it

        def scalars(mover: Optimizer, t: int, dtype: DType) -> dict[str, Any]:
            key = id(mover), t, dtype
            if key not in numbers:
                made = {name: store.const(value, dtype=dtype) for name, value in mover.scalars(t).items()}
                numbers[key] = {name: base.lift(scalar) for name, scalar in made.items()}
            return numbers[key]

        def stepped(ops: Interpreter[Any], param: Param, node: Node[Any]) -> _Updated:
            p, g = base.lift(param.mirror(store)), gradients.cotangent(node)
            mover = optimizer.at(paths[param])
            state = self._states[mover.name].get(param)
            if state is None:
                declared = mover.slots(param.shape, param.dtype, str(param))
                state = _State(0, tuple([store.full(shape=s.shape, value=s.fill, dtype=s.dtype) for s in declared]))
            before, held = state.now
            t, slots = before + 1, tuple([base.lift(slot) for slot in held])
            value, new = mover.update(ops, p, g, slots, scalars(mover, t, p.dtype))
            return _Updated(param, mover.name, state, t, (value, *new))

        def update(ops: Interpreter[Any]) -> list[_Updated]:
            return [stepped(ops, param, node) for param, node in nodes.items() if param.requires_grad]

        updated = base.region("update", update)
        if not base.executes:
            return
        values = iter(base.fetch([ref for each in updated for ref in each.refs], gradients.moment))
        fetched = [(each, *[next(values) for _ in each.refs]) for each in updated]
        store.raise_pending()
        commit = Commit()
        for each, value, *slots in fetched:
            self._states[each.optimizer][each.param] = each.state  # one that is new says what none says: no step yet
            prepare_moved(commit, [each.param], [value], store)
            commit.set(each.state, "now", (each.t, tuple(slots)))
        commit.run()
