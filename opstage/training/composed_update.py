"""`ComposedUpdate`: an optimizer's update as one op, whichever ops it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

from ..interpreters.composing import Composing, NotComposable
from .optim import Optimizer

Update: TypeAlias = "Callable[[Any, Any, Any, tuple[Any, ...], Mapping[str, Any]], tuple[Any, Sequence[Any]]]"
"""`Optimizer.update`: (ops, p, g, slots, scalars) -> (new p, new slots)."""


@final
class ComposedUpdate:
    """A context manager for one step that yields an `Update` for each parameter. If composing fails, the block ends.

    given_up    whether there is nothing to compose: each update is already one op, or needs concrete values
    """

    __slots__ = ("given_up", "_composing", "_updates")

    def __init__(self, optimizers: Sequence[Optimizer]):
        """`optimizers` are those of the parameters, in order."""
        self.given_up = False
        different = {id(optimizer): optimizer for optimizer in optimizers}
        self._composing = [Composing() for _ in different]
        made = {
            key: _composed(composing, optimizer)
            for composing, (key, optimizer) in zip(self._composing, different.items())
        }
        self._updates = [made[id(optimizer)] for optimizer in optimizers]

    def __enter__(self) -> Sequence[Update]:
        for composing in self._composing:
            composing.begin()
        return self._updates

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        written = any(composing.written for composing in self._composing)
        if kind is NotComposable or (kind is None and not written):
            self.given_up = True
        return kind is NotComposable


def _composed(composing: Composing, optimizer: Optimizer) -> Update:
    def update(
        ops: Any, p: Any, g: Any, slots: tuple[Any, ...], scalars: Mapping[str, Any]
    ) -> tuple[Any, Sequence[Any]]:
        names, count = tuple(scalars), len(slots)

        def program(ops: Any, p: Any, g: Any, *others: Any) -> tuple[Any, ...]:
            value, after = optimizer.update(ops, p, g, others[:count], dict(zip(names, others[count:])))
            return (value, *after)

        refs = (p, g, *slots, *scalars.values())
        value, *after = composing.run(ops, f"{optimizer.name}_update", program, refs)
        return value, after

    return update
