"""Random recorded programs for what rewrites, plans or compiles graphs: every family of ops, whole training steps.

The ops are those of `tests.property.ops`, each kept where it is defined and finite, and beside them the shapes that
passes look for: neutral operands, layouts undone, what is computed twice, what no input moves.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from opstage import optim
from opstage.interpreters.graph import Graph, record
from opstage.ops.types import TensorType, as_dtype
from opstage.transforms.derivatives import value_and_grad
from tests.property.ops import MAKERS
from tests.property.programs import Builder, Maker, Node, RandomProgram, Type

SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan)
"""What a wild program has among its inputs: where identities that are not exact are found out."""

# What passes look for -------------------------------------------------------------------------------------------------


def filled(ops: Any, x: Any, value: float) -> Any:
    return ops.full(shape=x.shape, value=value, dtype=x.dtype)


def table(ops: Any, x: Any) -> Any:
    """A constant of the shape of x, the same one every time."""
    return ops.const(np.cos(np.arange(int(np.prod(x.shape)), dtype=np.float64)).reshape(x.shape), dtype=x.dtype)


def _undone(ops: Any, x: Any) -> Any:
    axes = tuple(range(len(x.shape)))[::-1]
    return ops.permute(ops.permute(x, axes=axes), axes=axes)


def _reshaped_twice(ops: Any, x: Any) -> Any:
    return ops.reshape(ops.reshape(ops.reshape(x, shape=(-1, 1)), shape=(1, -1)), shape=x.shape)


def _cut_and_joined(ops: Any, x: Any) -> Any:
    if not x.shape or x.shape[0] < 2:
        return ops.concat([ops.reshape(x, shape=(1, *x.shape))], axis=0)
    first, rest = ops.split(x, sizes=(1, x.shape[0] - 1), axis=0)
    return ops.concat([first, rest], axis=0)


def _joined_and_cut(ops: Any, x: Any) -> Any:
    row = ops.unsqueeze(x, axis=0)
    joined = ops.concat([ops.sin(row), row, ops.cos(row)], axis=0)
    return ops.add(
        ops.gather_row(joined, index=1), ops.reshape(ops.slice(joined, axis=0, start=2, length=1), shape=x.shape)
    )


def _cast_and_back(ops: Any, x: Any) -> Any:
    return ops.cast(ops.cast(ops.cast(x, dtype="float64"), dtype="float64"), dtype=x.dtype)


def _chosen(ops: Any, x: Any) -> Any:
    always = ops.equal(filled(ops, x, 2.0), filled(ops, x, 2.0))
    return ops.select(ops.logical_not(ops.logical_and(always, always)), ops.exp(x), ops.select(always, x, ops.neg(x)))


def _ramp(ops: Any, x: Any) -> Any:
    if not x.shape:
        return ops.scale(ops.cast(ops.full(shape=(), value=3, dtype="int64"), dtype=x.dtype), c=0.1)
    return ops.scale(ops.cast(ops.iota(shape=x.shape, axis=len(x.shape) - 1), dtype=x.dtype), c=0.1)


NEUTRAL: dict[str, Callable[..., Any]] = {
    "times_one": lambda ops, x: ops.mul(filled(ops, x, 1.0), x),
    "over_one": lambda ops, x: ops.div(x, filled(ops, x, 1.0)),
    "halved": lambda ops, x: ops.div(x, filled(ops, x, 2.0)),
    "minus_zero": lambda ops, x: ops.sub(x, filled(ops, x, 0.0)),
    "minus_negative_zero": lambda ops, x: ops.sub(x, filled(ops, x, -0.0)),
    "plus_zero": lambda ops, x: ops.add(filled(ops, x, 0.0), x),
    "plus_negative_zero": lambda ops, x: ops.add(x, filled(ops, x, -0.0)),
    "from_zero": lambda ops, x: ops.sub(filled(ops, x, 0.0), x),
    "from_negative_zero": lambda ops, x: ops.sub(filled(ops, x, -0.0), x),
    "times_minus_one": lambda ops, x: ops.mul(x, filled(ops, x, -1.0)),
    "times_number": lambda ops, x: ops.mul(x, filled(ops, x, 0.3)),
    "scaled_by_one": lambda ops, x: ops.scale(ops.scale(x, c=1), c=-1.0),
    "negated_twice": lambda ops, x: ops.neg(ops.neg(x)),
    "scaled_negation": lambda ops, x: ops.neg(ops.scale(ops.neg(x), c=0.7)),
    "power_one": lambda ops, x: ops.pow(x, exponent=1),
    "power_two": lambda ops, x: ops.pow(ops.tanh(x), exponent=2.0),
    "power_zero": lambda ops, x: ops.add(ops.pow(x, exponent=0), x),
    "undone": _undone,
    "reshaped_twice": _reshaped_twice,
    "reshaped_alike": lambda ops, x: ops.reshape(ops.broadcast_to(x, shape=x.shape), shape=x.shape),
    "sum_of_one": lambda ops, x: ops.reduce_sum(ops.unsqueeze(x, axis=0), axis=0),
    "mean_of_one": lambda ops, x: ops.reduce_mean(ops.unsqueeze(x, axis=0), axis=0),
    "cast_and_back": _cast_and_back,
    "chosen": _chosen,
    "detached": lambda ops, x: ops.mul(ops.detach(ops.detach(x)), ops.tanh(x)),
    "same_twice": lambda ops, x: ops.sub(ops.sin(ops.sin(x)), ops.mul(ops.sin(x), ops.sin(x))),
    "with_constants": lambda ops, x: ops.add(ops.mul(x, table(ops, x)), table(ops, x)),
    "with_folded": lambda ops, x: ops.mul(x, ops.exp(ops.neg(ops.add(table(ops, x), filled(ops, x, 0.5))))),
    "with_ramp": lambda ops, x: ops.add(x, _ramp(ops, x)),
    "joined_and_cut": _joined_and_cut,
    "unread": lambda ops, x: (ops.exp(ops.tanh(x)), ops.neg(x))[1],
}

WILD: dict[str, Callable[..., Any]] = {
    "sqrt_anywhere": lambda ops, x: ops.sqrt(x),
    "log_anywhere": lambda ops, x: ops.log(x),
    "inverse_anywhere": lambda ops, x: ops.inv(x),
    "zeroed": lambda ops, x: ops.mul(x, filled(ops, x, 0.0)),
}


def _same_type(b: Builder, name: str) -> None:
    x = b.float()
    assert x is not None
    b.op(name, (x,), b[x])


def _cut_and_joined_maker(b: Builder, name: str) -> None:
    x = b.float()
    assert x is not None
    shape = b[x].shape
    b.op(name, (x,), b[x] if shape and shape[0] > 1 else Type("float", (1, *shape)))


def _transposed_product(ops: Any, x: Any, y: Any, tx: bool, ty: bool) -> Any:
    x = ops.transpose2d(x) if tx else x
    y = ops.permute(y, axes=(1, 0)) if ty else y
    return ops.scale(ops.matmul(x, y), c=0.4)


def _transposed_product_maker(b: Builder, name: str) -> None:
    x = b.float(lambda t: t.rank == 2)
    if x is None:
        return
    tx, ty = b.boolean(), b.boolean()
    m, k = b[x].shape[::-1] if tx else b[x].shape
    y = b.like("float", (2, k) if ty else (k, 2))
    b.op(name, (x, y), Type("float", (m, 2)), tx=tx, ty=ty)


FODDER: dict[str, Maker] = {name: Maker(_same_type, apply) for name, apply in NEUTRAL.items()}
FODDER["cut_and_joined"] = Maker(_cut_and_joined_maker, _cut_and_joined)
FODDER["transposed_product"] = Maker(_transposed_product_maker, _transposed_product)

EVERY = MAKERS | FODDER
SINGLE = {name: maker for name, maker in EVERY.items() if name != "cast_and_back"}
WITH_WILD = EVERY | {name: Maker(_same_type, apply) for name, apply in WILD.items()}

# Drawing --------------------------------------------------------------------------------------------------------------


class PlainBuilder(Builder):
    """Draws from Python's generator: for many programs, where there is nothing to shrink."""

    def __init__(self, source: random.Random):
        super().__init__(None)
        self.source = source

    def integer(self, low: int, high: int) -> int:
        return self.source.randint(low, high)

    def boolean(self) -> bool:
        return self.source.random() < 0.5

    def choice(self, *values: Any) -> Any:
        return self.source.choice(values)

    def permutation(self, n: int) -> tuple[int, ...]:
        return tuple(self.source.sample(range(n), n))


def _grown(builder: Builder, makers: dict[str, Maker], size: int, general_of_six: int = 4) -> tuple[Node, ...]:
    """The nodes of a program of `size` ops: so many of six of any family, the others what passes look for."""
    general = [name for name in makers if name in MAKERS]
    special = [name for name in makers if name not in MAKERS]
    for _ in range(builder.integer(1, 3)):
        builder.input(Type("float", tuple(builder.integer(1, 4) for _ in range(builder.integer(0, 3)))))
    tries = 0
    while sum(1 for node in builder.nodes if node.op) < size and tries < 4 * size:
        tries += 1
        name = builder.choice(*(general if builder.integer(1, 6) <= general_of_six else special))
        makers[name].make(builder, name)
    return tuple(builder.nodes)


# Recording ------------------------------------------------------------------------------------------------------------

OPTIMIZERS = (
    optim.sgd(lr=0.1, weight_decay=0.01),
    optim.momentum(lr=0.1),
    optim.adam(lr=0.1),
    optim.adamw(lr=0.1, weight_decay=0.1),
    optim.rmsprop(lr=0.1),
)


def recorded(program: RandomProgram, dtype: str, derivative: bool, optimizer: Any = None) -> Graph:
    """The graph of a program; with `derivative` its gradients are outputs, with an optimizer the updated inputs."""
    types = [
        TensorType(n.type.shape, as_dtype(dtype) if n.type.kind == "float" else n.type.dtype)
        for n in program.nodes
        if not n.op
    ]
    rng = np.random.default_rng(program.seed + 1)
    weights = [rng.standard_normal(t.shape) for t in program.types]

    def loss(ops: Any, *refs: Any) -> Any:
        results = program(ops, *refs)
        total = ops.full(shape=(), value=0.0)
        for result, w in zip(results, weights):
            if result.dtype.kind == "f":
                total = ops.add(total, ops.sum(ops.mul(result, ops.const(w))))
        return total, results

    def updated(ops: Any, parameters: Any, grads: Any) -> list[Any]:
        new: list[Any] = []
        scalars = {name: ops.const(value) for name, value in optimizer.scalars(1).items()}
        for p, g in zip(parameters, grads):
            slots = tuple(ops.full(shape=s.shape, value=s.fill) for s in optimizer.init([(p.shape, p.dtype)])[0])
            moved, state = optimizer.updater(ops, p, g, slots, scalars)
            new += [moved, *state]
        return new

    def base(ops: Any, *refs: Any) -> tuple[Any, ...]:
        if not derivative:
            return tuple(program(ops, *refs))
        (value, results), grads = value_and_grad(ops, loss, *refs, wrt=tuple(range(len(refs))), has_aux=True)
        moving = [(p, g) for p, g in zip(refs, grads) if g is not None]
        outputs = (value, *results, *[g for _, g in moving])
        if optimizer is None:
            return outputs
        return (*outputs, *ops.region("update", updated, [p for p, _ in moving], [g for _, g in moving]))

    return record(base, types, as_dtype(dtype), program.seed % 1000)


def inputs_of(program: RandomProgram, dtype: str, *, wild: bool = False) -> list[Any]:
    """Seeded arrays for the inputs; with `wild` some of their floats are zeros of either sign, infinite or nan."""
    rng = np.random.default_rng(program.seed)
    arrays: list[Any] = []
    for array in program.arrays():
        if array.dtype.kind == "f":
            array = array.astype(dtype)
            if wild:
                array = np.where(rng.random(array.shape) < 0.4, rng.choice(SPECIAL, array.shape), array).astype(dtype)
        arrays.append(array)
    return arrays


def random_graph(seed: int, size: int = 12, *, wild: bool = False, single: bool = False) -> tuple[Graph, list[Any]]:
    """A recorded program of about `size` ops, and inputs for it; the step, where it reads one, is not among them.

    A third computes in float32. Half have their gradients as outputs too, and some the parameters that an optimizer
    makes of those. A `wild` program is a plain one, mostly of what passes look for, with infinities and nan in it. A
    `single` one has no floats but float32, and some longer axes.
    """
    source = random.Random(seed)
    builder = PlainBuilder(source)
    if single and source.random() < 0.4:
        builder.input(
            Type("float", (*[builder.integer(1, 3) for _ in range(builder.integer(0, 2))], builder.choice(33, 130)))
        )
    nodes = _grown(builder, WITH_WILD, size, 1) if wild else _grown(builder, SINGLE if single else EVERY, size)
    program = RandomProgram(nodes, source.randrange(2**31), WITH_WILD)
    dtype = "float32" if single else source.choice(("float64", "float64", "float32"))
    derivative = source.random() < 0.5 and not wild
    optimizer = source.choice(OPTIMIZERS) if derivative and source.random() < 0.4 else None
    return recorded(program, dtype, derivative, optimizer), inputs_of(program, dtype, wild=wild)


@st.composite
def graphs(draw: Any, largest: int = 15) -> tuple[Graph, list[Any]]:
    """The same from hypothesis, which shrinks what fails."""
    nodes = _grown(Builder(draw), EVERY, draw(st.integers(1, largest)))
    program = RandomProgram(nodes, draw(st.integers(0, 2**31)), WITH_WILD)
    dtype = draw(st.sampled_from(("float64", "float32")))
    derivative = draw(st.booleans())
    optimizer = draw(st.sampled_from((None, *OPTIMIZERS))) if derivative else None
    return recorded(program, dtype, derivative, optimizer), inputs_of(program, dtype)
