"""Minimise Rosenbrock's function by Newton's method, with Hessian-vector products and no Hessian.

Each step solves H p = -g by conjugate gradients, which needs H only as a map v -> H v. Also shown: the same derivative
inside a program, by `opstage.transform`.

    python examples/hessian_vector_product.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import opstage
from opstage import Ops, Options

FLOAT64 = Options(dtype="float64")


def rosenbrock(ops: Ops[Any], x: Any) -> Any:
    """Σ 100 (x[i+1] - x[i]²)² + (1 - x[i])²; least, 0, at x = (1, …, 1)."""
    n = x.shape[0]
    here = ops.slice(x, axis=0, start=0, length=n - 1)
    following = ops.slice(x, axis=0, start=1, length=n - 1)
    return ops.sum(100 * (following - here**2) ** 2 + (1 - here) ** 2)


def squared_slope(ops: Ops[Any], x: Any) -> Any:
    """‖∇f‖², a program that takes a gradient inside; its own gradient is 2 H ∇f."""
    slope = opstage.transform.grad(ops, rosenbrock, x)
    return ops.sum(slope * slope)


def solve(hessian_times: Any, b: Any) -> Any:
    """H p = b by conjugate gradients, stopped where the curvature is not positive."""
    p, residual = np.zeros_like(b), b.copy()
    direction = residual.copy()
    for _ in range(4 * len(b)):
        image = hessian_times(direction)
        curvature = direction @ image
        if curvature <= 0 or residual @ residual < 1e-30:
            break
        length = (residual @ residual) / curvature
        p, before = p + length * direction, residual @ residual
        residual = residual - length * image
        direction = residual + (residual @ residual) / before * direction
    return p if p.any() else b


def main() -> None:
    x = np.zeros(6)
    for step in range(60):
        value, gradient = opstage.value_and_grad(rosenbrock, x, options=FLOAT64)
        if step % 5 == 0 or value < 1e-20:
            print(f"step {step:2}  f = {value:.3e}")
        if value < 1e-20:
            break
        at = x
        p = solve(lambda v: opstage.hvp(rosenbrock, (at,), (v,), options=FLOAT64)[0], -gradient)
        length = 1.0
        while opstage.run(rosenbrock, x + length * p, options=FLOAT64) > value + 1e-4 * length * (gradient @ p):
            length /= 2
        x = x + length * p
    print("minimum at", np.round(x, 6))

    start = np.linspace(-1.2, 1.2, 6)
    _, gradient = opstage.value_and_grad(rosenbrock, start, options=FLOAT64)
    (product,) = opstage.hvp(rosenbrock, (start,), (gradient,), options=FLOAT64)
    _, nested = opstage.value_and_grad(squared_slope, start, options=FLOAT64)
    print("reverse over reverse agrees:", bool(np.allclose(nested, 2 * product, rtol=1e-12)))


if __name__ == "__main__":
    main()
