"""`Ops` is all that an interpreter inherits: its abstract methods supplied, it has every op, each of one meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opstage import Ops
from opstage.ops.errors import ProgramError
from opstage.ops.primitive import Primitive, Static
from opstage.ops.protocol import OPS
from opstage.ops.structure import Cursor
from opstage.transforms.transparent import Transparent


class Words(Ops[Any]):
    """Refs are texts: what was computed, written down."""

    def __init__(self) -> None:
        self.cursor, self.dtype, self.seed = Cursor(), np.dtype("float32"), 3

    def bind(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> tuple[Any, ...]:
        text = f"{primitive}({', '.join([*refs, *(f'{name}={value!r}' for name, value in static.items())])})"
        return (text,) * (len(primitive.outputs) + len(primitive.residuals))

    def const(self, value: Any, /, *, dtype: Any = None) -> Any:
        return str(value)

    def step(self) -> Any:
        return "step"

    def iterations(self) -> tuple[Any, ...]:
        return ()

    def _refused(self, *args: Any, **named: Any) -> Any:
        raise NotImplementedError

    region = scan = cond = switch = while_loop = vjp_of = jvp_of = bounds_of = _refused


CALLS: dict[str, Any] = {
    "add(a, b)": lambda ops: ops.add("a", "b"),
    "select(m, a, b)": lambda ops: ops.select("m", "a", "b"),
    "linear(w, x, has_bias=False)": lambda ops: ops.linear("w", None, "x"),
    "relu(neg(a))": lambda ops: ops.relu(ops.neg("a")),
    "full(shape=(2,), value=0.0, dtype='float32')": lambda ops: ops.full(shape=np.array([2]), value=0.0),
    "bernoulli_mask(p, step, shape=(2,), seed=3, site=0)": lambda ops: ops.bernoulli_mask("p", shape=(2,), site=0),
}


@pytest.mark.parametrize("text", CALLS)
def test_ops_are_made_of_bind(text: str) -> None:
    ops = Words()
    assert CALLS[text](ops) == text
    assert isinstance(ops, Ops) and ops.cursor.ordinal == text.count("(") - text.count("=(")


@pytest.mark.parametrize("base", [Ops, Words, Transparent])
def test_a_name_of_an_op_has_no_other_meaning(base: type[Any]) -> None:
    with pytest.raises(ProgramError, match="class Mine defines relu, which every interpreter has as an op"):
        type("Mine", (base,), {"relu": lambda ops, x: x})


def test_every_op_says_what_it_is() -> None:
    assert [name for name in sorted(OPS) if not getattr(Ops, name).__doc__] == []
