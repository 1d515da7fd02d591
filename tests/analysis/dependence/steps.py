"""Steps of random programs, each from (B, T, 2) to (B, T, 2): what decoders are made of, and what leaks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from opstage import derived
from opstage.ops.dims import ratio

Step = Callable[[Any, Any], Any]
D = 2


def _across(f: Step) -> Step:
    """The step with batch and time exchanged."""
    return lambda ops, x: ops.permute(f(ops, ops.permute(x, axes=(1, 0, 2))), axes=(1, 0, 2))


def _positions(ops: Any, n: Any) -> tuple[Any, Any]:
    """Numbers of rows and of columns of a square."""
    return ops.iota(shape=(n, n), axis=0), ops.iota(shape=(n, n), axis=1)


def _shifted_by(ops: Any, value: Any, c: int) -> Any:
    return ops.add(value, ops.full(shape=value.shape, value=c, dtype=value.dtype))


MASKS: dict[str, Callable[[Any, Any, Any, int], Any]] = {
    # which columns j a row i sees
    "less": lambda ops, i, j, c: j < i + c,
    "less_equal": lambda ops, i, j, c: j + -c <= i,
    "not greater": lambda ops, i, j, c: ops.logical_not(ops.less(i + c, j)),
    "band": lambda ops, i, j, c: ops.abs(i - j) <= abs(c),
    "far": lambda ops, i, j, c: ops.logical_not(ops.abs(i - j) <= abs(c)),
    "window": lambda ops, i, j, c: ops.logical_and(i - j < 2, j <= i),
    "either": lambda ops, i, j, c: ops.logical_or(ops.equal(i, j), j < i + c),
    "exclusive or": lambda ops, i, j, c: ops.logical_xor(j < i, ops.equal(i, j)),
    "first": lambda ops, i, j, c: ops.logical_or(j <= 0, ops.equal(i, j)),
    "blank": lambda ops, i, j, c: j < i,
    "floats": lambda ops, i, j, c: ops.less(
        ops.full(shape=i.shape, value=0.5, dtype="float64"), ops.cast(j <= i + c, dtype="float64")
    ),
}


def _mask(ops: Any, n: Any, kind: str, c: int) -> Any:
    return MASKS[kind](ops, *_positions(ops, n), c)


def _scores(ops: Any, x: Any) -> Any:
    return ops.bmm(x, ops.permute(ops.tanh(x), axes=(0, 2, 1)))


def _hidden(ops: Any, scores: Any, seen: Any, value: float = -math.inf) -> Any:
    """The scores of what is seen, and a number elsewhere."""
    other = ops.full(shape=scores.shape, value=value, dtype="float64")
    return ops.select(ops.broadcast_to(seen, shape=scores.shape), scores, other)


def _attended(ops: Any, x: Any, seen: Any, value: float = -math.inf) -> Any:
    return ops.bmm(ops.softmax(_hidden(ops, _scores(ops, x), seen, value), axis=-1), x)


def _selected(kind: str, c: int, value: float, ops: Any, x: Any) -> Any:
    return _attended(ops, x, _mask(ops, x.shape[1], kind, c), value)


def _biased(ops: Any, x: Any, bias: Any) -> Any:
    scores = _scores(ops, x)
    return ops.bmm(ops.softmax(ops.add(scores, ops.broadcast_to(bias, shape=scores.shape)), axis=-1), x)


def _added(kind: str, c: int, ops: Any, x: Any) -> Any:
    numbers = [ops.full(shape=(x.shape[1],) * 2, value=v, dtype="float64") for v in (0.0, -math.inf)]
    return _biased(ops, x, ops.select(_mask(ops, x.shape[1], kind, c), *numbers))


def _logged(kind: str, c: int, ops: Any, x: Any) -> Any:
    return _biased(ops, x, ops.log(ops.cast(_mask(ops, x.shape[1], kind, c), dtype="float64")))


def _multiplied(kind: str, c: int, ops: Any, x: Any) -> Any:
    """Linear attention: products, masked by multiplication, not normalised."""
    scores = _scores(ops, x)
    allowed = ops.cast(_mask(ops, x.shape[1], kind, c), dtype="float64")
    return ops.bmm(ops.mul(scores, ops.broadcast_to(allowed, shape=scores.shape)), x)


def _triangle(upper: bool, k: int, ops: Any, x: Any) -> Any:
    f = derived.triu if upper else derived.tril
    return ops.bmm(f(ops, _scores(ops, x), k=k), x)


def _moved(distance: int, ops: Any, x: Any) -> Any:
    """Elements moved along time, zeros where none come in."""
    sides = (distance, 0) if distance > 0 else (0, -distance)
    padded = ops.pad(x, padding=((0, 0), sides, (0, 0)))
    return ops.slice(padded, axis=1, start=max(0, -distance), length=x.shape[1])


def _joined(ops: Any, x: Any) -> Any:
    """Moved by one, with the first element in front once more."""
    first = ops.slice(x, axis=1, start=0, length=1)
    return ops.slice(ops.concat([first, x], axis=1), axis=1, start=0, length=x.shape[1])


def _mean_so_far(ops: Any, x: Any) -> Any:
    count = ops.cast(_shifted_by(ops, ops.iota(shape=x.shape, axis=1), 1), dtype="float64")
    return ops.div(ops.cumsum(x, axis=1), count)


def _scanned(reverse: bool, out: str, ops: Any, x: Any) -> Any:
    rows = ops.permute(x, axes=(1, 0, 2))
    start = ops.full(shape=rows.shape[1:], value=0.0, dtype="float64")

    def body(inner: Any, carry: Any, row: Any) -> Any:
        new = inner.tanh(inner.add(inner.scale(carry, c=0.5), row))
        return new, {"new": new, "old": carry, "row": row}[out]

    last, ys = ops.scan(body, start, rows, reverse=reverse)
    if out == "row":
        ys = ops.add(ys, ops.broadcast_to(last, shape=ys.shape))
    return ops.permute(ys, axes=(1, 0, 2))


def _two_deep(ops: Any, x: Any) -> Any:
    """A scan whose carry holds the entry of the iteration before."""
    rows = ops.permute(x, axes=(1, 0, 2))
    zero = ops.full(shape=rows.shape[1:], value=0.0, dtype="float64")

    def body(inner: Any, carry: Any, row: Any) -> Any:
        before, earlier = carry
        return (row, before), inner.add(earlier, row)

    _, ys = ops.scan(body, (zero, zero), rows)
    return ops.permute(ys, axes=(1, 0, 2))


def _nested(ops: Any, x: Any) -> Any:
    """A scan over time in a scan over samples."""

    def outer(ops: Any, carry: Any, sample: Any) -> Any:
        def inner(ops: Any, state: Any, row: Any) -> Any:
            new = ops.add(state, row)
            return new, ops.mul(new, row)

        _, ys = ops.scan(inner, ops.full(shape=(D,), value=0.0, dtype="float64"), sample)
        return ops.add(carry, ops.reduce_sum(ys, axis=(0, 1))), ys

    _, ys = ops.scan(outer, ops.full(shape=(), value=0.0, dtype="float64"), x)
    return ys


def _total_of_samples(ops: Any, x: Any) -> Any:
    def body(inner: Any, carry: Any, row: Any) -> Any:
        return inner.add(carry, row), inner.mul(carry, row)

    return ops.scan(body, ops.full(shape=x.shape[1:], value=0.0, dtype="float64"), x)[1]


def _chosen(ops: Any, x: Any) -> Any:
    first = ops.reshape(ops.slice(ops.reshape(x, shape=(-1,)), axis=0, start=0, length=1), shape=())
    return ops.cond(first > 0.0, lambda o, y: o.cumsum(y, axis=1), lambda o, y: o.tanh(y), x)


def _repeated(ops: Any, x: Any) -> Any:
    """As often as it takes until the sum is small."""

    def goes_on(o: Any, y: Any) -> Any:
        return o.less(o.full(shape=(), value=1.0, dtype="float64"), o.abs(o.reduce_sum(y, axis=(0, 1, 2))))

    return ops.while_loop(goes_on, lambda o, y: o.scale(y, c=0.25), x)


def _counted(ops: Any, x: Any) -> Any:
    """Shifted three times over, in a loop that nothing decides."""

    def body(o: Any, state: Any) -> Any:
        return o.add(state[0], _moved(1, o, state[0])), _shifted_by(o, state[1], 1)

    start = (x, ops.full(shape=(), value=0))
    return ops.while_loop(lambda o, state: o.less(state[1], o.full(shape=(), value=3)), body, start)[0]


def _convolved(before: int, after: int, ops: Any, x: Any) -> Any:
    y = ops.pad(ops.permute(x, axes=(0, 2, 1)), padding=((0, 0), (0, 0), (before, after)))
    kernel = ops.full(shape=(D, D, before + after + 1), value=0.3, dtype="float64")
    return ops.permute(ops.conv(kernel, None, y, stride=1, padding=0), axes=(0, 2, 1))


def _pooled(before: int, after: int, ops: Any, x: Any) -> Any:
    y = ops.pad(ops.permute(x, axes=(0, 2, 1)), padding=((0, 0), (0, 0), (before, after)))
    pool = ops.max_pool(y, kernel=(before + after + 1,), stride=(1,), padding=(0,))
    return ops.permute(pool, axes=(0, 2, 1))


def _picked(sign: int, offset: int, ops: Any, x: Any) -> Any:
    """Rows read at positions that are computed, those that are not there as zeros."""
    at = ops.iota(shape=(x.shape[1],), axis=0)
    at = _shifted_by(ops, ops.neg(at) if sign < 0 else at, offset)
    rows = ops.gather_rows(ops.permute(x, axes=(1, 0, 2)), at, mode="zero")
    return ops.permute(rows, axes=(1, 0, 2))


def _folded(ops: Any, x: Any) -> Any:
    b, t, d = x.shape
    return ops.reshape(ops.softmax(ops.reshape(x, shape=(b * t, d)), axis=1), shape=(b, t, d))


def _folded_badly(ops: Any, x: Any) -> Any:
    b, t, d = x.shape
    return ops.reshape(ops.softmax(ops.reshape(x, shape=(b, d, t)), axis=2), shape=(b, t, d))


def _unfolded_badly(ops: Any, x: Any) -> Any:
    b, t, d = x.shape
    return ops.reshape(ops.permute(x, axes=(1, 0, 2)), shape=(b, t, d))


def _headed(ops: Any, x: Any) -> Any:
    """Causal attention of two heads of width 1, batch and heads merged."""
    b, t, d = x.shape
    heads = ops.reshape(ops.permute(ops.reshape(x, shape=(b, t, d, 1)), axes=(0, 2, 1, 3)), shape=(b * d, t, 1))
    out = _attended(ops, heads, _mask(ops, t, "less_equal", 0))
    return ops.reshape(ops.permute(ops.reshape(out, shape=(b, d, t, 1)), axes=(0, 2, 1, 3)), shape=(b, t, d))


def _einsum(text: str) -> Step:
    return lambda ops, x: derived.einsum(ops, text, x, ops.tanh(x))


def _early(ops: Any, x: Any) -> Any:
    """The sum of all but zeros from the third position on."""
    at = ops.iota(shape=x.shape, axis=1)
    kept = ops.select(at < 2, x, ops.full(shape=x.shape, value=0.0, dtype="float64"))
    return ops.broadcast_to(ops.reduce_sum(kept, axis=1, keepdims=True), shape=x.shape)


def _two_masks(ops: Any, x: Any) -> Any:
    """Attention whose weights are masked both before and after."""
    scores = _scores(ops, x)
    near = ops.cast(ops.broadcast_to(_mask(ops, x.shape[1], "band", 1), shape=scores.shape), dtype="float64")
    return ops.bmm(ops.softmax(_hidden(ops, scores, _mask(ops, x.shape[1], "less", 1)), axis=-1) * near, x)


def _late_positions(ops: Any, x: Any) -> Any:
    """Attention by positions that are cut out of longer ones: every query stands two further on."""
    n = x.shape[1]
    rows = ops.slice(ops.iota(shape=(n + 2, n), axis=0), axis=0, start=2, length=n)
    return _attended(ops, x, ops.less_equal(ops.iota(shape=(n, n), axis=1), rows))


def _every_other(ops: Any, x: Any) -> Any:
    """Every other element of what is there twice."""
    return ops.slice(ops.concat([x, x], axis=1), axis=1, start=0, length=x.shape[1], step=2)


def _times_numbers(ops: Any, x: Any) -> Any:
    """A running sum times a matrix of numbers."""
    return ops.bmm(ops.cumsum(x, axis=1), ops.full(shape=(x.shape[0], D, D), value=0.7, dtype="float64"))


def _blank_rows(ops: Any, x: Any) -> Any:
    """Where weights are no number because a row sees nothing, elements of the row itself in their place."""
    out = ops.bmm(_weights(ops, x, "blank"), x)
    return ops.select(ops.isnan(out), derived.flip(ops, x, axis=1), out)


def _weights(ops: Any, x: Any, kind: str = "less_equal") -> Any:
    return ops.softmax(_hidden(ops, _scores(ops, x), _mask(ops, x.shape[1], kind, 0)), axis=-1)


def _padded_weights(ops: Any, x: Any) -> Any:
    """Weights and keys behind a key of zeros."""
    side = ((0, 0), (0, 0), (1, 0))
    return ops.bmm(ops.pad(_weights(ops, x), padding=side), ops.pad(x, padding=((0, 0), (1, 0), (0, 0))))


def _cut_weights(ops: Any, x: Any) -> Any:
    """The weights of later keys alone, given to the keys in front of them."""
    n = x.shape[1]
    later = ops.slice(ops.pad(_weights(ops, x), padding=((0, 0), (0, 0), (0, 1))), axis=2, start=1, length=n)
    return ops.bmm(later, x)


def _numbers_added(ops: Any, x: Any) -> Any:
    """Zeros added to the first two positions, and fives to others."""
    zero, five = (ops.full(shape=x.shape, value=v, dtype="float64") for v in (0.0, 5.0))
    return x + ops.select(ops.iota(shape=x.shape, axis=1) < 2, zero, five)


def _size(ops: Any, shape: Any, size: Any) -> Any:
    """A tensor of one size, as an integer."""
    return ops.full(shape=shape, value=size if isinstance(size, int) else ratio(size, 1), dtype="int64")


def _flat_positions(ops: Any, x: Any) -> Any:
    """Attention by positions that are read from a table of all samples' positions, one after the other, at b*T + t."""
    b, n, _ = x.shape
    table = ops.reshape(ops.iota(shape=(b, n), axis=1), shape=(b * n,))
    samples = ops.mul(ops.iota(shape=(b, n), axis=0), _size(ops, (b, n), n))
    rows = ops.gather_rows(table, ops.add(samples, ops.iota(shape=(b, n), axis=1)))
    rows = ops.broadcast_to(ops.unsqueeze(rows, axis=2), shape=(b, n, n))
    return _attended(ops, x, ops.less_equal(ops.iota(shape=(b, n, n), axis=2), rows))


def _wrapped(ops: Any, x: Any) -> Any:
    """Elements at positions that are taken from the end where they are below 0, which none is."""
    at = ops.iota(shape=(x.shape[1],), axis=0)
    below = ops.less(at, ops.full(shape=at.shape, value=0, dtype=at.dtype))
    wrapped = ops.select(below, ops.add(at, _size(ops, at.shape, x.shape[1])), at)
    return ops.permute(ops.gather_rows(ops.permute(x, axes=(1, 0, 2)), wrapped), axes=(1, 0, 2))


STEPS: dict[str, Step] = {
    "tanh": lambda ops, x: ops.tanh(x),
    "softmax over samples": lambda ops, x: ops.softmax(x, axis=0),
    "softmax over time": lambda ops, x: ops.softmax(x, axis=1),
    "softmax": lambda ops, x: ops.softmax(x, axis=2),
    "layer norm": lambda ops, x: ops.layer_norm(x, None, None),
    "causal attention": lambda ops, x: ops.scaled_dot_product_attention(x, x, x, causal=True),
    "attention": lambda ops, x: ops.scaled_dot_product_attention(x, x, x),
    "attention across": _across(lambda ops, x: ops.scaled_dot_product_attention(x, x, x, causal=True)),
    "cumsum": lambda ops, x: ops.cumsum(x, axis=1),
    "cumsum exclusive": lambda ops, x: ops.cumsum(x, axis=1, exclusive=True),
    "cumsum reverse": lambda ops, x: ops.cumsum(x, axis=1, reverse=True, exclusive=True),
    "cumprod": lambda ops, x: ops.cumprod(x, axis=1),
    "linear recurrence": lambda ops, x: ops.linear_recurrence(ops.tanh(x), x, axis=1),
    "mean over time": lambda ops, x: ops.broadcast_to(ops.reduce_mean(x, axis=1, keepdims=True), shape=x.shape),
    "mean so far": _mean_so_far,
    "moved on": partial(_moved, 1),
    "moved on by two": partial(_moved, 2),
    "moved back": partial(_moved, -1),
    "joined": _joined,
    "first everywhere": lambda ops, x: ops.broadcast_to(ops.slice(x, axis=1, start=0, length=1), shape=x.shape),
    "last everywhere": lambda ops, x: ops.broadcast_to(
        ops.slice(x, axis=1, start=x.shape[1] - 1, length=1), shape=x.shape
    ),
    "early": _early,
    "flip": lambda ops, x: derived.flip(ops, x, axis=1),
    "flip and back": lambda ops, x: derived.flip(ops, ops.cumsum(derived.flip(ops, x, axis=1), axis=1), axis=1),
    "roll": lambda ops, x: derived.roll(ops, x, shift=1, axis=1),
    "scan": partial(_scanned, False, "new"),
    "scan before": partial(_scanned, False, "old"),
    "scan reverse": partial(_scanned, True, "new"),
    "scan last": partial(_scanned, False, "row"),
    "two deep": _two_deep,
    "nested": _nested,
    "total of samples": _total_of_samples,
    "chosen": _chosen,
    "chosen by number": lambda ops, x: ops.cond(
        ops.less(ops.full(shape=(), value=0), ops.full(shape=(), value=1)),
        lambda o, y: o.cumsum(y, axis=1, reverse=True),
        lambda o, y: o.tanh(y),
        x,
    ),
    "repeated": _repeated,
    "counted": _counted,
    "conv": partial(_convolved, 1, 1),
    "causal conv": partial(_convolved, 2, 0),
    "pool": partial(_pooled, 0, 1),
    "causal pool": partial(_pooled, 1, 0),
    "picked": partial(_picked, 1, -1),
    "picked ahead": partial(_picked, 1, 1),
    "picked backwards": partial(_picked, -1, 2),
    "folded": _folded,
    "folded badly": _folded_badly,
    "unfolded badly": _unfolded_badly,
    "heads": _headed,
    "einsum": _einsum("btd,bsd->bsd"),
    "einsum pairs": _einsum("btd,bte->bte"),
    "two masks": _two_masks,
    "sorted": lambda ops, x: ops.cast(ops.argsort(x, axis=1), dtype="float64"),
    "flat positions": _flat_positions,
    "wrapped": _wrapped,
    "late positions": _late_positions,
    "every other": _every_other,
    "padded weights": _padded_weights,
    "cut weights": _cut_weights,
    "numbers added": _numbers_added,
    "times numbers": _times_numbers,
    "blank rows": _blank_rows,
    "one minus": lambda ops, x: ops.sub(ops.full(shape=x.shape, value=1.0, dtype="float64"), ops.cumsum(x, axis=1)),
    "recurrence of factors": lambda ops, x: ops.linear_recurrence(
        x, ops.full(shape=x.shape, value=1.0, dtype="float64"), axis=1
    ),
    "maximum over time": lambda ops, x: ops.broadcast_to(ops.reduce_max(x, axis=1, keepdims=True), shape=x.shape),
    "dropout": lambda ops, x: derived.dropout(ops, x, 0.4, train=True),
    **{
        f"selected, {kind} {c}": partial(_selected, kind, c, -math.inf)
        for kind in MASKS
        if kind != "blank"
        for c in (-1, 0, 1)
    },
    **{f"added, {kind} {c}": partial(_added, kind, c) for kind in ("less", "band") for c in (0, 1)},
    **{f"logged, {kind} {c}": partial(_logged, kind, c) for kind in ("less_equal", "floats") for c in (0, 1)},
    **{f"multiplied, {kind} {c}": partial(_multiplied, kind, c) for kind in ("less_equal", "window") for c in (0, -1)},
    "selected, finite": partial(_selected, "less_equal", 0, -1e9),
    "lower triangle": partial(_triangle, False, 0),
    "lower triangle, more": partial(_triangle, False, 1),
    "upper triangle": partial(_triangle, True, 1),
}


def program_of(names: Sequence[str], ops: Any, x: Any) -> Any:
    """One step, or several one after the other, each added to what came in."""
    if len(names) == 1:
        return STEPS[names[0]](ops, x)
    for name in names:
        x = ops.add(x, STEPS[name](ops, x))
    return x


def drawn(rng: random.Random, length: int) -> list[str]:
    """Names of random steps."""
    return [rng.choice([*STEPS]) for _ in range(length)]
