"""One side of the table of ops in a process of its own: per op the CPU time of a value with its gradients, and numbers
by which both are compared, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cpu_time import best_ms
from benchmarks.each_op.row import Row
from benchmarks.each_op.table import TABLE

SECONDS = 0.03  # of a round

Weigh = Callable[[Any, Any], Any]


def main(side: str, names: list[str], rounds: int) -> dict[str, Any]:
    made = theirs if side == "torch" else lambda row, weighted: ours(row, weighted, side)
    return {name: measure(TABLE[name], made, rounds) for name in names}


def measure(row: Row, made: Callable[[Row, bool], Callable[[], list[Any]]], rounds: int) -> dict[str, Any]:
    return {"seen": list(map(seen, made(row, True)())), "ms": best_ms(made(row, False), rounds, SECONDS)}


def seen(array: Any) -> tuple[float, float]:
    """The norm of an array and its product with weights, which tell it from others, from one with its elements
    elsewhere too."""
    flat = np.asarray(array, np.float64).ravel()
    return float(np.linalg.norm(flat)), float(flat @ weights(flat.shape))


def weights(shape: tuple[int, ...]) -> Any:
    """Weights of elements: the plain sum of a softmax, for one, has no gradient to compare."""
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def ours(row: Row, weighted: bool, backend: str) -> Callable[[], list[Any]]:
    """The sum of an op's result and its gradients by an interpreter of ours."""
    import opstage

    def program(ops: Any, *arguments: Any) -> Any:
        result = row.ours(ops, *arguments)
        return ops.sum(result * ops.const(weights(result.shape)) if weighted else result)

    arrays, options = row.draw(), opstage.Options(backend=backend)
    floats = tuple(i for i, each in enumerate(row.arguments) if each.is_float)

    def call() -> list[Any]:
        value, gradients = opstage.value_and_grad(program, *arrays, wrt=floats, options=options)
        return [value, *gradients]

    return call


def theirs(row: Row, weighted: bool) -> Callable[[], list[Any]]:
    """The same by PyTorch, eager."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)
    tensors = [torch.from_numpy(array) for array in row.draw()]
    floats = [tensor.requires_grad_() for tensor, each in zip(tensors, row.arguments) if each.is_float]

    def call() -> list[Any]:
        result = row.theirs(torch, functional, *tensors)
        if weighted:
            result = result * torch.from_numpy(np.asarray(weights(tuple(result.shape))))
        for each in floats:
            each.grad = None
        value = result.sum()
        value.backward()  # which leaves gradients as arrays; torch.autograd.grad may give views of less
        return [value.detach(), *(each.grad for each in floats)]

    return call


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))))
