"""The ops of random programs, each tamed: operands are kept where it is defined, results where they do not explode.

Where an op has a kink (relu, comparisons, maxima) a constant moves its operands off the points at which mathematically
equal numbers meet: there rounding decides, and two right answers may differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import opstage
from opstage.ops import derived
from tests.property.programs import Builder, Maker, Type

MAKERS: dict[str, Maker] = {}
APART = 0.0173
Fits: TypeAlias = Callable[[Type], bool]
Make: TypeAlias = Callable[[Builder, str, int], None]


def ranked(t: Type) -> bool:
    return t.rank > 0


def of_rank(*ranks: int) -> Fits:
    return lambda t: t.rank in ranks


def taking(fits: Fits = lambda t: True, any_kind: bool = False) -> Callable[[Make], Callable[[Builder, str], None]]:
    """A maker that takes an operand that fits, a float or of any kind; without one it adds nothing."""

    def register(make: Make) -> Callable[[Builder, str], None]:
        def made(b: Builder, name: str) -> None:
            x = b.any(fits) if any_kind else b.float(fits)
            if x is not None:
                make(b, name, x)

        return made

    return register


def op(
    apply: Callable[..., Any], *, kinked: bool = False, fits: Fits = lambda t: True, any_kind: bool = False
) -> Callable[[Make], None]:
    """Register a maker, as of `taking`, under its function's name."""

    def register(make: Make) -> None:
        MAKERS[make.__name__] = Maker(taking(fits, any_kind)(make), apply, kinked)

    return register


def shifted(ops: Any, x: Any, by: float = APART) -> Any:
    return ops.add(x, ops.full(shape=x.shape, value=by, dtype=x.dtype))


def untied(ops: Any, x: Any, axes: tuple[int, ...] | None = None) -> Any:
    """x with its entries moved apart along the axes, so that no two of them tie by accident."""
    for n, axis in enumerate(range(len(x.shape)) if axes is None else axes):
        step = ops.scale(ops.cast(ops.iota(shape=x.shape, axis=axis), dtype=x.dtype), c=APART * (n + 1.3))
        x = ops.add(x, step)
    return x


def positive(ops: Any, x: Any) -> Any:
    """√(x² + 1/2)"""
    return ops.sqrt(shifted(ops, ops.mul(x, x), 0.5))


# Elementwise --------------------------------------------------------------------------------------------------------

SMOOTH: dict[str, Callable[..., Any]] = {
    "neg": lambda ops, x: ops.neg(x),
    "scale": lambda ops, x: ops.scale(x, c=-1.3),
    "sin": lambda ops, x: ops.sin(x),
    "cos": lambda ops, x: ops.cos(x),
    "tanh": lambda ops, x: ops.tanh(x),
    "sigmoid": lambda ops, x: ops.sigmoid(x),
    "softplus": lambda ops, x: ops.softplus(x),
    "erf": lambda ops, x: ops.erf(x),
    "silu": lambda ops, x: ops.silu(x),
    "gelu": lambda ops, x: ops.gelu(x),
    "gelu_erf": lambda ops, x: ops.gelu(x, approximate="none"),
    "exp": lambda ops, x: ops.exp(ops.tanh(x)),
    "log": lambda ops, x: ops.log(positive(ops, x)),
    "safe_log": lambda ops, x: ops.safe_log(positive(ops, x), eps=1e-3),
    "inv": lambda ops, x: ops.inv(positive(ops, x)),
    "power": lambda ops, x: ops.pow(positive(ops, x), exponent=-0.7),
    "cube": lambda ops, x: ops.pow(ops.tanh(x), exponent=3),
    "infix": lambda ops, x: (1 - 2.5 * x) / 3 - x**2 / (4 + x * x) + (-x),
    "dropout": lambda ops, x: derived.dropout(ops, x, 0.3, True),
    "noise": lambda ops, x: ops.mul(x, ops.rand_normal(shape=x.shape)),
    "region": lambda ops, x: ops.region("part", lambda inner, y: inner.mul(inner.sin(y), inner.tanh(x)), x),
    "inner_grad": lambda ops, x: opstage.transform.grad(ops, lambda o, y: o.sum(o.mul(o.sin(y), o.tanh(x))), x),
    "inner_jvp": lambda ops, x: opstage.transform.jvp(ops, lambda o, y: o.mul(o.erf(y), x), (x,), (ops.cos(x),))[1],
}
KINKED: dict[str, Callable[..., Any]] = {
    "relu": lambda ops, x: ops.relu(shifted(ops, x)),
    "abs": lambda ops, x: ops.abs(shifted(ops, x)),
    "clamp": lambda ops, x: ops.clamp(x, lo=-0.5 + APART, hi=0.5 + APART),
    "detach": lambda ops, x: ops.detach(x),
}


@taking()
def same_type(b: Builder, name: str, x: int) -> None:
    b.op(name, (x,), b[x])


MAKERS |= {name: Maker(same_type, apply) for name, apply in SMOOTH.items()}
MAKERS |= {name: Maker(same_type, apply, kinked=True) for name, apply in KINKED.items()}

BINARY: dict[str, Callable[..., Any]] = {
    "add": lambda ops, x, y: ops.add(x, y),
    "sub": lambda ops, x, y: ops.sub(x, y),
    "mul": lambda ops, x, y: ops.mul(ops.tanh(x), y),
    "div": lambda ops, x, y: ops.div(x, positive(ops, y)),
}
KINKED_BINARY: dict[str, Callable[..., Any]] = {
    "maximum": lambda ops, x, y: ops.maximum(x, shifted(ops, y)),
    "minimum": lambda ops, x, y: ops.minimum(x, shifted(ops, y)),
}


@taking()
def two_of_one_type(b: Builder, name: str, x: int) -> None:
    b.op(name, (x, b.like("float", b[x].shape)), b[x])


MAKERS |= {name: Maker(two_of_one_type, apply) for name, apply in BINARY.items()}
MAKERS |= {name: Maker(two_of_one_type, apply, kinked=True) for name, apply in KINKED_BINARY.items()}


@op(lambda ops, x, y: x * ops.sigmoid(y) - y / 2)
def infix_broadcast(b: Builder, name: str, x: int) -> None:
    shape = b[x].shape
    stretched = tuple(1 if b.boolean() else d for d in shape)[b.integer(0, len(shape)) :]
    y = b.like("float", stretched)
    b.op(name, (x, y) if b.boolean() else (y, x), b[x])


# Masks and integers -------------------------------------------------------------------------------------------------


@op(lambda ops, x, y, relation: getattr(ops, relation)(x, shifted(ops, y)), kinked=True)
def compare(b: Builder, name: str, x: int) -> None:
    y = b.like("float", b[x].shape)
    b.op(name, (x, y), Type("mask", b[x].shape), relation=b.choice("less", "less_equal", "equal"))


@op(lambda ops, x, y: ops.equal(x, y), fits=lambda t: t.kind == "int", any_kind=True)
def equal_integers(b: Builder, name: str, x: int) -> None:
    b.op(name, (x, b.like("int", b[x].shape, b[x].bound)), Type("mask", b[x].shape))


@op(lambda ops, m, n: ops.logical_not(ops.logical_and(m, n)), fits=lambda t: t.kind == "mask", any_kind=True)
def nand(b: Builder, name: str, m: int) -> None:
    b.op(name, (m, b.like("mask", b[m].shape)), b[m])


@op(lambda ops, m, x, y: ops.select(m, x, y))
def select(b: Builder, name: str, x: int) -> None:
    shape = b[x].shape
    b.op(name, (b.like("mask", shape), x, b.like("float", shape)), b[x])


@op(lambda ops, x: ops.cast(x, dtype=ops.dtype), fits=lambda t: t.kind != "float", any_kind=True)
def to_float(b: Builder, name: str, x: int) -> None:
    b.op(name, (x,), Type("float", b[x].shape))


@op(lambda ops, x, axis, keepdims: ops.argmax(untied(ops, x), axis=axis, keepdims=keepdims), kinked=True, fits=ranked)
def argmax(b: Builder, name: str, x: int) -> None:
    axis, keepdims = b.integer(0, b[x].rank - 1), b.boolean()
    shape = reduced(b[x].shape, (axis,), keepdims)
    b.op(name, (x,), Type("int", shape, b[x].shape[axis]), axis=b.sign(axis, b[x].rank), keepdims=keepdims)


# Reductions ---------------------------------------------------------------------------------------------------------


def reduced(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


@op(lambda ops, x: ops.sum(x))
def sum_all(b: Builder, name: str, x: int) -> None:
    b.op(name, (x,), Type("float", ()))


@taking(fits=ranked)
def reduction(b: Builder, name: str, x: int) -> None:
    axes, keepdims = b.axes(b[x].rank), b.boolean()
    shape = reduced(b[x].shape, axes, keepdims)
    b.op(name, (x,), Type("float", shape), axis=tuple(b.sign(a, b[x].rank) for a in axes), keepdims=keepdims)


def _reduce_max(ops: Any, x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    return ops.reduce_max(untied(ops, x), axis=axis, keepdims=keepdims)


MAKERS |= {
    "reduce_sum": Maker(reduction, lambda ops, x, **static: ops.reduce_sum(x, **static)),
    "reduce_mean": Maker(reduction, lambda ops, x, **static: ops.reduce_mean(x, **static)),
    "reduce_max": Maker(reduction, _reduce_max, kinked=True),
    "logsumexp": Maker(reduction, lambda ops, x, **static: derived.logsumexp(ops, x, **static)),
}


@taking(fits=ranked)
def along_axis(b: Builder, name: str, x: int) -> None:
    b.op(name, (x,), b[x], axis=b.sign(b.integer(0, b[x].rank - 1), b[x].rank))


MAKERS |= {
    "softmax": Maker(along_axis, lambda ops, x, axis: ops.softmax(x, axis=axis)),
    "log_softmax": Maker(along_axis, lambda ops, x, axis: ops.log_softmax(x, axis=axis)),
}

# Layout -------------------------------------------------------------------------------------------------------------


@op(lambda ops, x, shape: ops.reshape(x, shape=shape))
def reshape(b: Builder, name: str, x: int) -> None:
    size = math.prod(b[x].shape)
    first = b.choice(*(d for d in range(1, size + 1) if size % d == 0))
    shape = b.choice((size,), (first, size // first), (size // first, 1, first))
    static = tuple(-1 if i == 0 else d for i, d in enumerate(shape)) if b.boolean() else shape
    b.op(name, (x,), Type("float", shape), shape=static)


@op(lambda ops, x, shape: ops.broadcast_to(x, shape=shape), fits=lambda t: t.rank < 3)
def broadcast_to(b: Builder, name: str, x: int) -> None:
    shape = tuple(b.integer(1, 3) if d == 1 else d for d in b[x].shape)
    shape = (b.integer(1, 3), *shape) if b.boolean() else shape
    b.op(name, (x,), Type("float", shape), shape=shape)


@op(lambda ops, x, axes: ops.permute(x, axes=axes), fits=lambda t: t.rank > 1, any_kind=True)
def permute(b: Builder, name: str, x: int) -> None:
    axes = b.permutation(b[x].rank)
    shape = tuple(b[x].shape[a] for a in axes)
    b.op(name, (x,), Type(b[x].kind, shape, b[x].bound), axes=tuple(b.sign(a, b[x].rank) for a in axes))


TRANSPOSES = {
    "transpose2d": (1, 0),
    "transpose3d_first_to_last": (1, 2, 0),
    "transpose3d_last_to_first": (2, 0, 1),
    "transpose3d_last_two": (0, 2, 1),
}


@op(lambda ops, x, which: getattr(ops, which)(x), fits=of_rank(2, 3))
def transpose(b: Builder, name: str, x: int) -> None:
    which = b.choice(*(w for w, axes in TRANSPOSES.items() if len(axes) == b[x].rank))
    b.op(name, (x,), Type("float", tuple(b[x].shape[a] for a in TRANSPOSES[which])), which=which)


@op(lambda ops, x, depth: ops.swap_adjacent_at_depth(x, depth=depth), fits=lambda t: t.rank > 1)
def swap_adjacent(b: Builder, name: str, x: int) -> None:
    depth = b.integer(0, b[x].rank - 2)
    shape = list(b[x].shape)
    shape[depth], shape[depth + 1] = shape[depth + 1], shape[depth]
    b.op(name, (x,), Type("float", tuple(shape)), depth=depth)


@op(lambda ops, *xs, axis: ops.concat(xs, axis=axis), fits=ranked)
def concat(b: Builder, name: str, x: int) -> None:
    axis, shape = b.integer(0, b[x].rank - 1), b[x].shape
    other = b.like("float", tuple(b.integer(1, 2) if i == axis else d for i, d in enumerate(shape)))
    operands = (x, other, x) if b.boolean() else (other, x)
    total = sum(b[i].shape[axis] for i in operands)
    grown = tuple(total if i == axis else d for i, d in enumerate(shape))
    b.op(name, operands, Type("float", grown), axis=b.sign(axis, len(shape)))


@op(lambda ops, *xs, axis: ops.stack(xs, axis=axis), fits=lambda t: t.rank < 3)
def stack(b: Builder, name: str, x: int) -> None:
    axis, shape = b.integer(0, b[x].rank), b[x].shape
    b.op(name, (x, b.like("float", shape)), Type("float", (*shape[:axis], 2, *shape[axis:])), axis=axis)


@op(lambda ops, x, **static: ops.slice(x, **static), fits=ranked, any_kind=True)
def slice_(b: Builder, name: str, x: int) -> None:
    axis = b.integer(0, b[x].rank - 1)
    size = b[x].shape[axis]
    start, step = b.integer(0, size - 1), b.integer(1, 2)
    length = b.integer(1, 1 + (size - 1 - start) // step)
    shape = tuple(length if i == axis else d for i, d in enumerate(b[x].shape))
    b.op(name, (x,), Type(b[x].kind, shape, b[x].bound), axis=axis, start=start, length=length, step=step)


@op(
    lambda ops, x, sizes, axis, part: ops.split(x, sizes=sizes, axis=axis)[part],
    fits=lambda t: max(t.shape, default=0) > 1,
)
def split(b: Builder, name: str, x: int) -> None:
    shape = b[x].shape
    axis = b.choice(*(i for i, d in enumerate(shape) if d > 1))
    first = b.integer(1, shape[axis] - 1)
    sizes, part = (first, shape[axis] - first), b.integer(0, 1)
    b.op(
        name,
        (x,),
        Type("float", tuple(sizes[part] if i == axis else d for i, d in enumerate(shape))),
        sizes=sizes,
        axis=axis,
        part=part,
    )


@op(
    lambda ops, x, padding, interior: ops.pad(x, padding=padding, value=0.7, interior=interior),
    fits=lambda t: t.rank > 0 and math.prod(t.shape) <= 36,
)
def pad(b: Builder, name: str, x: int) -> None:
    padding = tuple((b.integer(0, 1), b.integer(0, 2)) for _ in b[x].shape)
    interior = tuple(b.integer(0, 1) for _ in b[x].shape)
    shape = tuple(d + low + high + gap * (d - 1) for d, (low, high), gap in zip(b[x].shape, padding, interior))
    b.op(name, (x,), Type("float", shape), padding=padding, interior=interior)


@op(lambda ops, x, axis: ops.unsqueeze(x, axis=axis), fits=lambda t: t.rank < 3, any_kind=True)
def unsqueeze(b: Builder, name: str, x: int) -> None:
    axis, shape = b.integer(0, b[x].rank), b[x].shape
    b.op(name, (x,), Type(b[x].kind, (*shape[:axis], 1, *shape[axis:]), b[x].bound), axis=axis)


@op(lambda ops, x, axis: ops.squeeze(x, axis=axis), fits=lambda t: 1 in t.shape)
def squeeze(b: Builder, name: str, x: int) -> None:
    axis = b.choice(*(i for i, d in enumerate(b[x].shape) if d == 1))
    b.op(name, (x,), Type("float", reduced(b[x].shape, (axis,), False)), axis=axis)


@op(lambda ops, x, start, end: ops.flatten(x, start=start, end=end), fits=ranked)
def flatten(b: Builder, name: str, x: int) -> None:
    start = b.integer(0, b[x].rank - 1)
    end = b.integer(start, b[x].rank - 1)
    shape = b[x].shape
    merged = (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :])
    b.op(name, (x,), Type("float", merged), start=start, end=end)


# Indexing -----------------------------------------------------------------------------------------------------------


@op(
    lambda ops, x, **static: (ops.gather_scalar if len(x.shape) == 1 else ops.gather_row)(x, **static),
    fits=of_rank(1, 2),
)
def gather_static(b: Builder, name: str, x: int) -> None:
    index, mode = b.integer(0, b[x].shape[0] - 1), "raise"
    if b.integer(0, 3) == 0:
        index, mode = b[x].shape[0] + 1, "zero"
    b.op(name, (x,), Type("float", b[x].shape[1:]), index=index, mode=mode)


@op(
    lambda ops, x, idx, mode: (ops.gather_vec if len(x.shape) == 1 else ops.gather_rows)(x, idx, mode=mode),
    fits=of_rank(1, 2),
)
def gather(b: Builder, name: str, x: int) -> None:
    mode = b.choice("raise", "zero")
    bound = b[x].shape[0] + (2 if mode == "zero" else 0)
    idx = b.like("int", b.choice((), (3,), (2, 2)), bound)
    b.op(name, (x, idx), Type("float", (*b[idx].shape, *b[x].shape[1:])), mode=mode)


def _scatter(ops: Any, x: Any, v: Any, idx: Any) -> Any:
    return (ops.scatter_add_vec if len(x.shape) == 1 else ops.scatter_add_row)(x, v, idx)


@op(_scatter, fits=of_rank(1, 2))
def scatter_add(b: Builder, name: str, x: int) -> None:
    v = b.like("float", (3, *b[x].shape[1:]))
    b.op(name, (x, v, b.like("int", (3,), b[x].shape[0])), b[x])


@op(lambda ops, x, v, index: _scatter(ops, x, v, index), fits=of_rank(1, 2))
def scatter_add_static(b: Builder, name: str, x: int) -> None:
    b.op(name, (x, b.like("float", b[x].shape[1:])), b[x], index=b.integer(0, b[x].shape[0] - 1))


# Products, convolutions, pools --------------------------------------------------------------------------------------


def _damped(ops: Any, x: Any) -> Any:
    return ops.scale(x, c=0.4)


@op(lambda ops, x, y: _damped(ops, ops.matmul(x, y)), fits=of_rank(2))
def matmul(b: Builder, name: str, x: int) -> None:
    y = b.like("float", (b[x].shape[1], b.integer(1, 3)))
    b.op(name, (x, y), Type("float", (b[x].shape[0], b[y].shape[1])))


@op(lambda ops, x, y: _damped(ops, x @ y), fits=ranked)
def infix_matmul(b: Builder, name: str, x: int) -> None:
    shape = b[x].shape
    columns = b.choice((), (2,))
    y = b.like("float", (shape[-1], *columns))
    b.op(name, (x, y), Type("float", (*shape[:-1], *columns)))


@op(lambda ops, x, y: _damped(ops, ops.bmm(x, y)), fits=of_rank(3))
def bmm(b: Builder, name: str, x: int) -> None:
    n, m, k = b[x].shape
    b.op(name, (x, b.like("float", (n, k, 2))), Type("float", (n, m, 2)))


@op(lambda ops, w, *rest: _damped(ops, ops.linear(w, rest[0] if len(rest) == 2 else None, rest[-1])), fits=ranked)
def linear(b: Builder, name: str, x: int) -> None:
    out = b.integer(1, 3)
    weight = b.like("float", (out, b[x].shape[-1]))
    bias = (b.like("float", (out,)),) if b.boolean() else ()
    b.op(name, (weight, *bias, x), Type("float", (*b[x].shape[:-1], out)))


@op(lambda ops, k, x, **static: _damped(ops, ops.conv(k, None, x, **static)), fits=of_rank(2, 3))
def conv(b: Builder, name: str, x: int) -> None:
    inputs, *sizes = b[x].shape
    kernel = tuple(b.integer(1, min(2, d)) for d in sizes)
    stride, padding = b.integer(1, 2), b.integer(0, 1)
    weight = b.like("float", (2, inputs, *kernel))
    spatial = tuple((d + 2 * padding - k) // stride + 1 for d, k in zip(sizes, kernel))
    b.op(name, (weight, x), Type("float", (2, *spatial)), stride=stride, padding=padding)


@op(lambda ops, k, x, **static: _damped(ops, ops.conv_transpose(k, None, x, **static)), fits=of_rank(2, 3))
def conv_transpose(b: Builder, name: str, x: int) -> None:
    inputs, *sizes = b[x].shape
    stride = b.integer(1, 2)
    weight = b.like("float", (inputs, 1, *(2 for _ in sizes)))
    b.op(name, (weight, x), Type("float", (1, *((d - 1) * stride + 2 for d in sizes))), stride=stride)


@taking(fits=lambda t: t.rank in (2, 3) and min(t.shape[1:]) > 1)
def pool(b: Builder, name: str, x: int) -> None:
    channels, *sizes = b[x].shape
    padding = b.integer(0, 1)
    spatial = tuple(d + 2 * padding - 2 + 1 for d in sizes)
    b.op(name, (x,), Type("float", (channels, *spatial)), kernel=(2,) * len(sizes), stride=1, padding=padding)


MAKERS |= {
    "max_pool": Maker(pool, lambda ops, x, **static: ops.max_pool(untied(ops, x), **static), kinked=True),
    "avg_pool": Maker(pool, lambda ops, x, **static: ops.avg_pool(x, count_include_pad=False, **static)),
    "smooth_max_pool": Maker(pool, lambda ops, x, **static: ops.smooth_max_pool(x, beta=1.7, **static)),
}

# Normalization, attention, loss, loops ------------------------------------------------------------------------------


def _norm(ops: Any, x: Any, *parameters: Any, which: str) -> Any:
    gamma, beta = (*parameters, None, None)[:2]
    if which == "rms_norm":
        return ops.rms_norm(x, gamma, eps=0.1)
    return ops.layer_norm(x, gamma, beta, eps=0.1)


@op(_norm, fits=ranked)
def norm(b: Builder, name: str, x: int) -> None:
    which = b.choice("layer_norm", "rms_norm")
    count = b.integer(0, 1 if which == "rms_norm" else 2)
    parameters = tuple(b.like("float", b[x].shape[-1:]) for _ in range(count))
    b.op(name, (x, *parameters), b[x], which=which)


@op(
    lambda ops, x, gamma, output: ops.batch_norm(x, gamma, None, channel_axis=0, eps=0.1)[output],
    fits=lambda t: t.rank > 1 and math.prod(t.shape[1:]) > 1,
)
def batch_norm(b: Builder, name: str, x: int) -> None:
    channels, output = b[x].shape[:1], b.integer(0, 2)
    gamma = b.like("float", channels)
    b.op(name, (x, gamma), Type("float", b[x].shape if output == 0 else channels), output=output)


@op(lambda ops, x, groups: ops.group_norm(x, None, None, groups=groups, eps=0.1), fits=of_rank(3))
def group_norm(b: Builder, name: str, x: int) -> None:
    b.op(name, (x,), b[x], groups=b.choice(*(g for g in range(1, b[x].shape[1] + 1) if b[x].shape[1] % g == 0)))


def _attention(ops: Any, q: Any, k: Any, v: Any, *mask: Any, causal: bool) -> Any:
    return ops.scaled_dot_product_attention(q, k, v, *mask, causal=causal)


@op(_attention, fits=of_rank(2))
def attention(b: Builder, name: str, q: int) -> None:
    (n, d), m = b[q].shape, b.integer(1, 3)
    k, v = b.like("float", (m, d)), b.like("float", (m, 2))
    mask = (b.like("mask", (n, m)),) if b.boolean() else ()
    b.op(name, (q, k, v, *mask), Type("float", (n, 2)), causal=n <= m and b.boolean())


@op(lambda ops, x, y: ops.mse_loss(x, y))
def mse_loss(b: Builder, name: str, x: int) -> None:
    b.op(name, (x, b.like("float", b[x].shape)), Type("float", ()))


@op(lambda ops, x, labels, **static: ops.cross_entropy(x, labels, **static), fits=of_rank(1, 2))
def cross_entropy(b: Builder, name: str, x: int) -> None:
    *rows, classes = b[x].shape
    labels = b.like("int", tuple(rows), classes)
    reduction_ = b.choice("mean", "sum", "none")
    shape = tuple(rows) if reduction_ == "none" else ()
    b.op(name, (x, labels), Type("float", shape), reduction=reduction_, label_smoothing=b.choice(0.0, 0.1))


def _cumulate(ops: Any, xs: Any, w: Any, reverse: bool) -> Any:
    def body(inner: Any, carry: Any, x: Any) -> Any:
        carry = inner.tanh(inner.add(inner.mul(carry, w), x))
        return carry, inner.sin(carry)

    return ops.scan(body, w, xs, reverse=reverse)[1]


@op(_cumulate, fits=ranked)
def scan(b: Builder, name: str, xs: int) -> None:
    b.op(name, (xs, b.like("float", b[xs].shape[1:])), b[xs], reverse=b.boolean())
