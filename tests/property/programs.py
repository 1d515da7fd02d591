"""Random well-typed programs: a pool of tensors that grows op by op, each op drawn among those that fit.

The generator finds the type of every tensor by rules of its own, so it is an oracle for the types that Opstage gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st


@dataclass(frozen=True)
class Type:
    """kind is float, mask or int; an int's elements are in [0, bound)."""

    kind: str
    shape: tuple[int, ...]
    bound: int = 0

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype({"float": "float64", "mask": "bool", "int": "int64"}[self.kind])

    def array(self, rng: np.random.Generator) -> Any:
        """Normal floats, fair masks, uniform integers."""
        if self.kind == "float":
            return rng.standard_normal(self.shape)
        return rng.integers(0, 2 if self.kind == "mask" else self.bound, self.shape).astype(self.dtype)


@dataclass(frozen=True)
class Node:
    """An input (no op), or an op of earlier nodes."""

    type: Type
    op: str = ""
    operands: tuple[int, ...] = ()
    static: tuple[tuple[str, Any], ...] = ()

    def __repr__(self) -> str:
        words = [*(f"v{i}" for i in self.operands), *(f"{name}={value!r}" for name, value in self.static)]
        made = f"{self.op}({', '.join(words)})" if self.op else "input"
        return f"{made}  # {self.type.kind} {self.type.shape}" + (f" < {self.type.bound}" if self.type.bound else "")


class RandomProgram:
    """Nodes v0, v1 …; it takes the inputs in their order and returns what no other node reads."""

    def __init__(self, nodes: tuple[Node, ...], seed: int, makers: dict[str, Maker]):
        self.nodes = nodes
        self.seed = seed
        self.makers = makers

    def __repr__(self) -> str:
        return "\n" + "\n".join(f"v{i} = {node!r}" for i, node in enumerate(self.nodes)) + f"\nseed {self.seed}"

    def __call__(self, ops: Any, *refs: Any) -> list[Any]:
        values: list[Any] = []
        inputs = iter(refs)
        for node in self.nodes:
            if not node.op:
                values.append(next(inputs))
            else:
                apply = self.makers[node.op].apply
                values.append(apply(ops, *(values[i] for i in node.operands), **dict(node.static)))
        return [values[i] for i in self.results]

    @property
    def results(self) -> list[int]:
        read = {i for node in self.nodes for i in node.operands}
        return [i for i, node in enumerate(self.nodes) if node.op and i not in read]

    @property
    def types(self) -> list[Type]:
        return [self.nodes[i].type for i in self.results]

    @property
    def smooth(self) -> bool:
        return not any(node.op and self.makers[node.op].kinked for node in self.nodes)

    def arrays(self) -> tuple[Any, ...]:
        rng = np.random.default_rng(self.seed)
        return tuple(node.type.array(rng) for node in self.nodes if not node.op)


class Builder:
    """A program in the making."""

    def __init__(self, draw: Any):
        self.draw = draw
        self.nodes: list[Node] = []

    def __getitem__(self, i: int) -> Type:
        return self.nodes[i].type

    def integer(self, low: int, high: int) -> int:
        value: int = self.draw(st.integers(low, high))
        return value

    def boolean(self) -> bool:
        value: bool = self.draw(st.booleans())
        return value

    def choice(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def permutation(self, n: int) -> tuple[int, ...]:
        return tuple(self.draw(st.permutations(range(n))))

    def axes(self, rank: int) -> tuple[int, ...]:
        """Some axes, at least one."""
        return tuple(sorted(self.permutation(rank)[: self.integer(1, rank)]))

    def sign(self, axis: int, rank: int) -> int:
        """The axis, or its negative name."""
        return axis - rank if self.boolean() else axis

    def any(self, fits: Callable[[Type], bool]) -> int | None:
        """A node that fits, preferably a late one; None when there is none."""
        found = [i for i, node in enumerate(self.nodes) if fits(node.type)]
        return self.choice(*found[::-1]) if found else None

    def float(self, fits: Callable[[Type], bool] = lambda t: True) -> int | None:
        return self.any(lambda t: t.kind == "float" and fits(t))

    def like(self, kind: str, shape: tuple[int, ...], bound: int = 0) -> int:
        """A node of this very type: one of the program's, or a new input."""
        found = self.any(lambda t: t == Type(kind, shape, bound))
        return self.input(Type(kind, shape, bound)) if found is None or self.integer(0, 3) == 0 else found

    def input(self, type: Type) -> int:
        self.nodes.append(Node(type))
        return len(self.nodes) - 1

    def op(self, name: str, operands: tuple[int, ...], type: Type, **static: Any) -> None:
        self.nodes.append(Node(type, name, operands, tuple(static.items())))


@dataclass(frozen=True)
class Maker:
    """An op of random programs.

    make    adds it to a builder, or does not where nothing fits
    apply   the op itself: (ops, *refs, **static) -> ref
    kinked  whether a central difference may disagree with its derivative (kinks, detach)
    """

    make: Callable[[Builder, str], None]
    apply: Callable[..., Any]
    kinked: bool = False


@st.composite
def programs(draw: Any, makers: dict[str, Maker], *, smooth: bool = False) -> RandomProgram:
    """Programs of 3 to 15 ops over tensors of rank 0 to 3 and sizes 1 to 4."""
    alike: dict[Any, list[str]] = {}  # the many functions of one element are not to crowd out the rest
    for name, maker in makers.items():
        if not (smooth and maker.kinked):
            alike.setdefault(maker.make, []).append(name)
    groups = [names for names in alike.values() for _ in range(1 + len(names) // 4)]
    builder = Builder(draw)
    for _ in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
        builder.input(Type("float", shape))
    wanted = draw(st.integers(3, 15))
    while sum(1 for node in builder.nodes if node.op) < wanted:
        name = draw(st.sampled_from(draw(st.sampled_from(groups))))
        makers[name].make(builder, name)
    return RandomProgram(tuple(builder.nodes), draw(st.integers(0, 2**31)), makers)
