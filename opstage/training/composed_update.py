"""`ComposedUpdate`: an optimizer's update as one op, whatever ops it is written in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

from ..interpreters.composing import Composing, NotComposable
from .optim import Optimizer

Update: TypeAlias = "Callable[[Any, Any, Any, tuple[Any, ...], Mapping[str, Any]], tuple[Any, Sequence[Any]]]"
"""`Optimizer.update`: (ops, p, g, slots, scalars) -> (new p, new slots)."""


@final
class ComposedUpdate:
    """The update of an optimizer, as an `Update` within `with`, which is one step; where it gives up, it ends there.

    given_up    whether there is nothing to be composed: the update is one op already, or needs values
    """

    __slots__ = ("given_up", "_optimizer", "_composing")

    def __init__(self, optimizer: Optimizer):
        self.given_up = False
        self._optimizer = optimizer
        self._composing = Composing()

    def __enter__(self) -> Update:
        self._composing.begin()
        return self._update

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        if kind is NotComposable or (kind is None and not self._composing.written):
            self.given_up = True
        return kind is NotComposable

    def _update(
        self, ops: Any, p: Any, g: Any, slots: tuple[Any, ...], scalars: Mapping[str, Any]
    ) -> tuple[Any, Sequence[Any]]:
        optimizer, names, count = self._optimizer, tuple(scalars), len(slots)

        def program(ops: Any, p: Any, g: Any, *others: Any) -> tuple[Any, ...]:
            value, after = optimizer.update(ops, p, g, others[:count], dict(zip(names, others[count:])))
            return (value, *after)

        refs = (p, g, *slots, *scalars.values())
        value, *after = self._composing.run(ops, f"{optimizer.name}_update", program, refs)
        return value, after
