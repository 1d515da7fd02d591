"""Random programs over random meshes: layers that use every axis, by every collective, in random order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from opstage import derived
from opstage.ops.mesh import Mesh
from opstage.ops.types import dtype_name

WIDTH = 24
"""Features of a row, which 2, 3, 4, 6 and 12 ranks can share."""
ROWS = 12
"""Rows of a rank in one part of a batch."""
AXES = ("data", "model", "pipe", "expert")

Layer = Callable[[Any, Any, Any, str, int], Any]
"""(ops, parameters, x, axis, a number of its own) -> another x, alike over the axis as x was."""


def _halves(ops: Any, params: Any, x: Any, axis: str, k: int) -> Any:
    """Megatron's pair of products."""
    up, down = ops.shard(params["up"], axis=axis, dim=0), ops.shard(params["down"], axis=axis, dim=1)
    out = ops.all_reduce(ops.linear(down, None, ops.gelu(ops.linear(up, None, x))), axis=axis)
    return ops.add(x, out)


def _gathered(ops: Any, params: Any, x: Any, axis: str, k: int) -> Any:
    own = ops.tanh(ops.shard(x, axis=axis, dim=1))
    return ops.all_gather(own, axis=axis, dim=1, replicated=True)


def _exchanged(ops: Any, params: Any, x: Any, axis: str, k: int) -> Any:
    """Rows in place of features and back, with a softmax over whole rows between."""
    rows = ops.all_to_all(ops.shard(x, axis=axis, dim=1), axis=axis, split=0, join=1)
    own = ops.all_to_all(ops.softmax(rows, axis=1), axis=axis, split=1, join=0)
    return ops.add(x, ops.all_gather(own, axis=axis, dim=1, replicated=True))


def _shifted(ops: Any, params: Any, x: Any, axis: str, k: int) -> Any:
    own = ops.shard(x, axis=axis, dim=1)
    both = ops.mul(own, ops.tanh(ops.shift(own, axis=axis, by=k - 3)))
    return ops.add(x, ops.all_gather(both, axis=axis, dim=1, replicated=True))


def _scattered(ops: Any, params: Any, x: Any, axis: str, k: int) -> Any:
    factor = ops.cast(ops.axis_index(axis=axis), dtype=dtype_name(x.dtype))
    mine = ops.mul(x, ops.broadcast_to(ops.cos(factor), shape=x.shape))
    own = ops.reduce_scatter(mine, axis=axis, dim=1)
    return ops.all_gather(ops.tanh(own), axis=axis, dim=1, replicated=True)


def _normal(ops: Any, params: Any, x: Any, axis: str, k: int) -> Any:
    """A softmax whose row's maximum and total come from all ranks."""
    own = ops.shard(x, axis=axis, dim=1)
    top = ops.all_max(ops.reduce_max(ops.detach(own), axis=1, keepdims=True), axis=axis)
    e = ops.exp(ops.sub(own, ops.broadcast_to(top, shape=own.shape)))
    total = ops.all_reduce(ops.reduce_sum(e, axis=1, keepdims=True), axis=axis)
    out = ops.div(e, ops.broadcast_to(total, shape=e.shape))
    return ops.add(x, ops.all_gather(out, axis=axis, dim=1, replicated=True))


def _looped(ops: Any, params: Any, x: Any, axis: str, k: int) -> Any:
    """A loop whose body sends."""

    def body(o: Any, carry: Any, _: Any) -> Any:
        own = o.tanh(o.shard(carry, axis=axis, dim=1))
        return o.all_gather(own, axis=axis, dim=1, replicated=True), None

    out, _ = ops.scan(body, x, None, length=2)
    return out


LAYERS: dict[str, Layer] = {
    layer.__name__.strip("_"): layer
    for layer in (_halves, _gathered, _exchanged, _shifted, _scattered, _normal, _looped)
}

ALIKE = frozenset({"halves", "gathered", "exchanged", "normal", "looped"})
"""Layers that mean the same for any number of ranks."""


@dataclass(frozen=True)
class Drawn:
    """What one seed draws: a mesh, the layers of a program in order, and how it is trained.

    layers   (name of a layer, axis, its number)
    spread   (processes, zero, bucket) of the runs that are compared with one process
    """

    mesh: str
    layers: tuple[tuple[str, str, int], ...]
    backend: str
    accumulate: int
    centred: bool
    clipped: bool
    spread: tuple[tuple[int, int, str], ...]

    @property
    def alike(self) -> bool:
        """Whether one rank computes the same."""
        return {name for name, _, _ in self.layers} <= ALIKE

    @property
    def rows(self) -> int:
        return ROWS * Mesh.parse(self.mesh).size("data") * self.accumulate

    def loss(self, ops: Any, params: Any, x: Any, y: Any) -> Any:
        """The mean square of what the layers make of x, less y."""
        h = ops.linear(params["first"], params["b"], x)
        for name, axis, k in self.layers:
            h = LAYERS[name](ops, params, h, axis, k)
        if self.centred:
            mean = derived.all_mean(ops, ops.reduce_mean(h, axis=0), axis="data")
            h = ops.sub(h, ops.broadcast_to(mean, shape=h.shape))
        apart = ops.sub(ops.linear(params["last"], None, h), y)
        loss = ops.reduce_mean(ops.mul(apart, apart))
        return derived.all_mean(ops, loss, axis="data") if self.centred else loss

    def params(self) -> dict[str, Any]:
        """Parameters, some of which ZeRO shares out, and one with elements that no number of ranks shares equally."""
        rng = np.random.default_rng(1)
        shapes = {"first": (WIDTH, 47), "up": (48, WIDTH), "down": (WIDTH, 48), "b": (WIDTH,), "last": (5, WIDTH)}
        return {name: (0.2 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}

    def batch(self, step: int) -> tuple[Any, Any]:
        rng = np.random.default_rng(step)
        return tuple(rng.standard_normal((self.rows, n)).astype(np.float32) for n in (47, 5))  # type: ignore[return-value]


def drawn(seed: int, backend: str = "eager", most: int = 12) -> Drawn:
    """What a seed draws, on at most so many ranks."""
    rng = np.random.default_rng(seed)
    while True:
        axes = rng.permutation(AXES)[: rng.integers(1, 4)]
        sizes = {str(axis): int(rng.choice([2, 2, 3, 3, 4, 6])) for axis in axes}
        ranks = int(np.prod([*sizes.values()]))
        if 2 <= ranks <= most and (ranks & (ranks - 1) or rng.random() < 0.4):
            break
    others = [axis for axis in sizes if axis != "data"]
    layers = [(str(rng.choice([*LAYERS])), axis, int(rng.integers(0, 7))) for axis in others for _ in range(2)]
    layers = [layers[i] for i in rng.permutation(len(layers))]
    counts = [n for n in range(2, ranks + 1) if ranks % n == 0]
    chosen = sorted({int(n) for n in rng.choice(counts, 2)})
    spread = tuple(
        (count, int(rng.choice([0, 2, 3])), str(rng.choice(["0", "1B", "600B", "3KiB", "5KiB", "1MiB"])))
        for count in chosen
    )
    centred = bool(rng.random() < 0.4)
    return Drawn(
        mesh=",".join(f"{axis}={size}" for axis, size in sizes.items()),
        layers=tuple(layers),
        backend=backend,
        accumulate=1 if centred else int(rng.choice([1, 2, 3])),
        centred=centred,
        clipped=bool(rng.random() < 0.3),
        spread=spread,
    )
