"""Needs of every program here: data drawn from a seed, and layers by the names that PyTorch gives their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

Arrays = tuple[Any, ...]


class Architecture(Protocol):
    """One architecture of a size: its module gives the loss of a batch, and so does its program, which reads the
    module's parameters by their names."""

    def module(self) -> Any: ...

    def program(self, ops: Any, params: Any, *batch: Any) -> Any: ...

    def data(self) -> Arrays: ...


class Draw:
    """Arrays of a batch, the same ones in every process."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def floats(self, *shape: int) -> Any:
        return self.rng.standard_normal(shape).astype(np.float32)

    def below(self, limit: int, *shape: int) -> Any:
        return self.rng.integers(0, limit, shape)

    def bits(self, *shape: int) -> Any:
        return self.rng.integers(0, 2, shape).astype(np.float32)


class Layers:
    """`net.conv("stem", x)`: a layer with the parameters stem.weight and, where there is one, stem.bias."""

    def __init__(self, ops: Any, params: Mapping[str, Any]) -> None:
        self.ops, self.params = ops, params

    def _of(self, name: str) -> tuple[Any, Any]:
        return self.params[f"{name}.weight"], self.params.get(f"{name}.bias")

    def linear(self, name: str, x: Any) -> Any:
        return self.ops.linear(*self._of(name), x)

    def conv(self, name: str, x: Any, **how: Any) -> Any:
        return self.ops.conv(*self._of(name), x, **how)

    def conv_transpose(self, name: str, x: Any, **how: Any) -> Any:
        return self.ops.conv_transpose(*self._of(name), x, **how)

    def batch_norm(self, name: str, x: Any) -> Any:
        return self.ops.batch_norm(x, *self._of(name))[0]

    def layer_norm(self, name: str, x: Any) -> Any:
        return self.ops.layer_norm(x, *self._of(name))

    def group_norm(self, name: str, x: Any, groups: int) -> Any:
        return self.ops.group_norm(x, *self._of(name), groups=groups)

    def instance_norm(self, name: str, x: Any) -> Any:
        from opstage import derived

        return derived.instance_norm(self.ops, x, *self._of(name))


def parts(ops: Any, x: Any, count: int, axis: int) -> list[Any]:
    """x in equal parts along an axis, as `torch.chunk`."""
    length = x.shape[axis] // count
    return [ops.slice(x, axis=axis, start=i * length, length=length) for i in range(count)]


def of_each_cell(ops: Any, scores: Any, labels: Any) -> Any:
    """Cross-entropy of scores whose classes are axis 1, as PyTorch has them, in each cell of the axes behind it."""
    last = (0, *range(2, len(scores.shape)), 1)
    rows = ops.reshape(ops.permute(scores, axes=last), shape=(-1, scores.shape[1]))
    return ops.cross_entropy(rows, ops.reshape(labels, shape=(-1,)))
