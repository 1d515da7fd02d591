"""What is proved of how a loss joins: a table of losses, each with what is true of it by arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from opstage.ops.derived import dropout
from opstage.ops.trees import flatten
from opstage.ops.types import FLOAT64, INT64, TensorType
from opstage.training.loss_reduction import loss_reduction


class Interpreter:
    dtype = FLOAT64
    seed = 0


ROWS, WIDTH = 6, 4


def number(ops: Any, value: float) -> Any:
    return ops.full(shape=(), value=value)


def count(ops: Any, labels: Any) -> Any:
    return ops.sum(ops.cast(ops.less(ops.full(shape=labels.shape, value=0, dtype="int64"), labels), dtype="float64"))


def normed(ops: Any, w: Any, x: Any) -> Any:
    y, _, _ = ops.batch_norm(x, ops.reduce_mean(w, axis=0), None)
    return y


# (w of WIDTH×WIDTH, x of rows×WIDTH, labels of rows) -> loss
MEANS: dict[str, Any] = {
    "a mean": lambda ops, w, x, t: ops.reduce_mean(ops.tanh(ops.matmul(x, w))),
    "a sum by a number of rows": lambda ops, w, x, t: ops.div(ops.sum(x), number(ops, x.shape[0] * WIDTH)),
    "a sum by a rounded quotient": lambda ops, w, x, t: ops.scale(ops.sum(x), c=1 / x.shape[0]),
    "a product with one": lambda ops, w, x, t: ops.mul(number(ops, 1 / x.shape[0]), ops.sum(x)),
    "a mean and a penalty": lambda ops, w, x, t: ops.add(ops.reduce_mean(x), ops.sum(w)),
    "without a batch": lambda ops, w, x, t: ops.sum(w),
    "dropout": lambda ops, w, x, t: ops.reduce_mean(dropout(ops, x, p=0.5, train=True)),
    "a softmax of each row": lambda ops, w, x, t: ops.reduce_mean(ops.softmax(x, axis=1)),
    "columns first": lambda ops, w, x, t: ops.reduce_mean(ops.exp(ops.permute(x, axes=(1, 0)))),
    "a batch norm, knowingly": lambda ops, w, x, t: ops.reduce_mean(ops.exp(normed(ops, w, x))),
}
SUMS: dict[str, Any] = {
    "a sum": lambda ops, w, x, t: ops.sum(ops.tanh(ops.matmul(x, w))),
    "half a sum": lambda ops, w, x, t: ops.neg(ops.scale(ops.sum(x), c=0.5)),
    "a sum of cross-entropies": lambda ops, w, x, t: ops.cross_entropy(ops.matmul(x, w), t, reduction="sum"),
    "rows in halves": lambda ops, w, x, t: ops.sum(ops.reduce_max(ops.reshape(x, shape=(x.shape[0] * 2, 2)), axis=1)),
    "columns joined to rows": lambda ops, w, x, t: ops.sum(
        ops.exp(ops.reshape(ops.permute(x, axes=(1, 0)), shape=(x.shape[0] * WIDTH,)))
    ),
}
DIVIDED: dict[str, Any] = {
    "counted": lambda ops, w, x, t: ops.div(ops.sum(x), count(ops, t)),
    "counted and halved": lambda ops, w, x, t: ops.scale(ops.div(ops.sum(x), count(ops, t)), c=0.5),
    "counted and a penalty": lambda ops, w, x, t: ops.add(ops.div(ops.sum(x), count(ops, t)), ops.sum(w)),
    "a cross-entropy": lambda ops, w, x, t: ops.cross_entropy(ops.matmul(x, w), t),
}
NOTHING: dict[str, Any] = {
    "a sum and a penalty": lambda ops, w, x, t: ops.add(ops.sum(x), ops.sum(w)),
    "both, divided": lambda ops, w, x, t: ops.scale(ops.add(ops.sum(x), ops.sum(w)), c=1 / x.shape[0]),
    "a mean and a sum": lambda ops, w, x, t: ops.add(ops.reduce_mean(x), ops.sum(ops.matmul(x, w))),
    "a mean of two means": lambda ops, w, x, t: ops.mul(ops.reduce_mean(x), ops.reduce_mean(x)),
    "a root of a mean": lambda ops, w, x, t: ops.sqrt(ops.reduce_mean(ops.mul(x, x))),
    "a penalty counted too": lambda ops, w, x, t: ops.div(ops.add(ops.sum(x), ops.sum(w)), count(ops, t)),
    "a mean counted": lambda ops, w, x, t: ops.div(ops.reduce_mean(x), count(ops, t)),
    "counted and a bit": lambda ops, w, x, t: ops.div(ops.sum(x), ops.add(count(ops, t), number(ops, 1e-8))),
    "counted, at least one": lambda ops, w, x, t: ops.div(ops.sum(x), ops.maximum(count(ops, t), number(ops, 1.0))),
    "counted by the model": lambda ops, w, x, t: ops.div(ops.sum(x), ops.sum(ops.matmul(x, w))),
    "counted by a draw": lambda ops, w, x, t: ops.div(ops.sum(x), ops.sum(dropout(ops, x, p=0.5, train=True))),
    "two counts": lambda ops, w, x, t: ops.add(ops.div(ops.sum(x), count(ops, t)), ops.div(ops.sum(x), ops.sum(x))),
    "a softmax over the rows": lambda ops, w, x, t: ops.reduce_mean(ops.softmax(x, axis=0)),
    "centred rows": lambda ops, w, x, t: ops.sum(
        ops.exp(ops.sub(x, ops.broadcast_to(ops.reduce_mean(x, axis=0), shape=x.shape)))
    ),
    "rows against rows": lambda ops, w, x, t: ops.reduce_mean(ops.exp(ops.matmul(x, ops.transpose2d(x)))),
    "the first row": lambda ops, w, x, t: ops.sum(ops.slice(x, axis=0, start=0, length=1)),
    "the greatest": lambda ops, w, x, t: ops.sum(ops.reduce_max(x, axis=0)),
    "rows by their numbers": lambda ops, w, x, t: ops.sum(ops.mul(x, ops.iota(shape=x.shape, axis=0, dtype="float64"))),
    "rows cut anew": lambda ops, w, x, t: ops.sum(ops.reduce_max(ops.reshape(x, shape=(WIDTH, x.shape[0])), axis=0)),
    "two orders of rows": lambda ops, w, x, t: ops.sum(
        ops.mul(
            ops.reshape(ops.permute(x, axes=(1, 0)), shape=(x.shape[0] * WIDTH,)),
            ops.reshape(x, shape=(x.shape[0] * WIDTH,)),
        )
    ),
    "a weight, once for each row": lambda ops, w, x, t: ops.add(
        ops.reduce_mean(x), ops.sum(ops.broadcast_to(ops.sum(w), shape=x.shape))
    ),
    "a sum, once for each row": lambda ops, w, x, t: ops.sum(ops.broadcast_to(ops.sum(x), shape=(x.shape[0],))),
}
LOSSES = {"rows": MEANS, "sum": SUMS, "divisor": DIVIDED, "": NOTHING}
"""By how a loss is proved to join; nothing is proved of the last."""


IN_TERMS = (
    "a sum and a penalty",
    "both, divided",
    "a mean and a sum",
    "a mean of two means",
    "a root of a mean",
    "a penalty counted too",
    "a mean counted",
    "counted and a bit",
    "counted, at least one",
    "two counts",
    "centred rows",
    "a weight, once for each row",
    "a sum, once for each row",
)
"""Those that follow term by term, of sums over the rows that the data alone decide."""
IN_TERMS_OF_ALL = ("counted by the model", "counted by a draw")
"""And those of sums that parameters or draws decide, which only ranks that compute at once can add up."""


@pytest.mark.parametrize(("name", "expected"), [(name, expected) for expected, each in LOSSES.items() for name in each])
def test_what_is_proved(name: str, expected: str) -> None:
    loss = LOSSES[expected][name]

    def program(ops: Any, *refs: Any) -> Any:
        return flatten((loss(ops, *refs), {}))

    types = [TensorType((WIDTH, WIDTH), FLOAT64), TensorType((ROWS, WIDTH), FLOAT64), TensorType((ROWS,), INT64)]
    found = loss_reduction(program, types, slice(1, 3), Interpreter())
    assert (found.loss, found.divisor is not None) == (expected, expected == "divisor"), found.reason
    in_terms = [found.in_terms(before=before) is not None for before in (True, False)]
    assert in_terms == [name in IN_TERMS, name in IN_TERMS + IN_TERMS_OF_ALL]
