"""A case run on Opstage and on PyTorch, from the same operands and the same cotangents."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import optree
import torch

from opstage.ops.trees import flatten, unflatten
from opstage.options import Options
from opstage.transforms.derivatives import run_on_tape, vjp
from tests.conformance.harness import EXECUTING, cast_tree, is_float
from tests.parity.twin import Case, Twin

SEED = 20260101
DTYPES = ("float64", "float32")
TOLERANCE = {"float64": (1e-10, 1e-12), "float32": (1.3e-6, 1e-5)}
"""Relative and absolute, for one term; times √n where n terms are added up, in float32."""


class Outcome(NamedTuple):
    """Results in order; where gradients were asked for, those of the float operands in order, and the results again.

    What is differentiated may take another way to its result: a tape expands composites that have no rule.
    """

    values: list[Any]
    gradients: list[Any]
    differentiated: list[Any]


def operands(twin: Twin, case: Case, dtype: str) -> tuple[Any, ...]:
    """The case's operands: the same for every interpreter and for PyTorch, floats in `dtype`."""
    rng = np.random.default_rng([SEED, zlib.crc32(f"{twin.op}-{case.name}".encode())])
    return cast_tree(case.arrays(rng), dtype)  # type: ignore[no-any-return]


def cotangents(twin: Twin, case: Case, values: list[Any], dtype: str) -> list[Any]:
    """Normal numbers shaped like the float results, None for the others."""
    rng = np.random.default_rng([SEED + 1, zlib.crc32(f"{twin.op}-{case.name}".encode())])
    return [rng.standard_normal(np.shape(v)).astype(dtype) if is_float(v) else None for v in values]


def on_torch(
    twin: Twin, case: Case, args: tuple[Any, ...], dtype: str, computed_in: Any = None, device: str = "cpu"
) -> tuple[Outcome, list[Any]]:
    """PyTorch's outcome, and the cotangents pulled back: numbers of `dtype`, whatever dtype `args` are computed in."""
    with torch.device(device):  # for what a twin makes
        return _on_torch(twin, case, args, dtype, dtype if computed_in is None else computed_in, device)


def _on_torch(
    twin: Twin, case: Case, args: tuple[Any, ...], dtype: str, given: Any, device: str
) -> tuple[Outcome, list[Any]]:
    inputs: list[torch.Tensor] = []

    def tensor(array: Any) -> torch.Tensor:
        made = torch.from_numpy(np.array(array)).to(device)
        if made.is_floating_point():
            made.requires_grad_(not twin.gradient)
            inputs.append(made)
        return made

    tensors = optree.tree_map(tensor, args)
    outputs = optree.tree_leaves(twin.torch(*tensors, **case.static))
    values = [out.detach().cpu().numpy() for out in outputs]
    seeds = cotangents(twin, case, values, dtype)
    pulled = [
        (out, torch.from_numpy(seed.astype(given)).to(device)) for out, seed in zip(outputs, seeds) if seed is not None
    ]
    if twin.gradient or not pulled or not inputs:
        return Outcome(values, [], []), [None] * len(outputs)
    reached = [(out, seed) for out, seed in pulled if out.requires_grad]
    found: Any = [None] * len(inputs)
    if reached:
        found = torch.autograd.grad(
            [out for out, _ in reached], inputs, [seed for _, seed in reached], allow_unused=True
        )
    gradients = [np.zeros(x.shape, given) if g is None else g.cpu().numpy() for x, g in zip(inputs, found)]
    return Outcome(values, gradients, values), seeds


def on_opstage(
    interpreter: str, twin: Twin, case: Case, args: tuple[Any, ...], seeds: list[Any], dtype: str
) -> Outcome:
    """Opstage's outcome on one of the interpreters of the conformance tests."""
    base = EXECUTING[interpreter](Options(dtype=dtype))
    leaves, structure = flatten((args, [seed for seed in seeds if seed is not None]))
    shapes: list[Any] = []

    def program(ops: Any, *refs: Any) -> tuple[Any, ...]:
        arguments, given = unflatten(structure, refs)
        supplied = iter(given)

        def f(inner: Any, *operands: Any) -> Any:
            return optree.tree_leaves(twin.apply(inner, *operands, **case.static))

        _, _, outputs, _ = run_on_tape(ops, f, arguments, (False,) * len(arguments))
        result: tuple[Any, ...] = ([node.value for node in outputs], [], [])
        if given:
            values, pullback = vjp(ops, f, *arguments)
            pulled = pullback([next(supplied) if seed is not None else None for seed in seeds])
            result = (result[0], optree.tree_leaves(pulled), values)
        found, shape = flatten(result)
        shapes.append(shape)
        return tuple(found)

    results = base.execute(program, tuple(base.put(leaf) for leaf in leaves))
    return Outcome(*unflatten(shapes[0], [np.asarray(base.get(r)) for r in results]))


def assert_equal_outcomes(actual: Outcome, expected: Outcome, case: Case, dtype: str) -> None:
    """Shapes equal; values within tolerance; nan and infinities at the same places."""
    relative, absolute = TOLERANCE[dtype]
    growth = max(case.terms, 1) ** 0.5 if dtype == "float32" else 1.0
    for what, ours, theirs in paired(actual, expected):
        assert ours.shape == theirs.shape, f"{what}: shape {ours.shape}, PyTorch's is {theirs.shape}"
        assert ours.dtype == theirs.dtype, f"{what}: dtype {ours.dtype}, PyTorch's is {theirs.dtype}"
        np.testing.assert_allclose(
            ours, theirs, rtol=relative * growth, atol=absolute * growth, err_msg=f"{what}, PyTorch's second"
        )


def paired(actual: Outcome, expected: Outcome) -> Iterator[tuple[str, Any, Any]]:
    """(what it is, ours, theirs) of every result and every gradient."""
    for kind, ours, theirs in (
        ("result", actual.values, expected.values),
        ("gradient", actual.gradients, expected.gradients),
        ("result when differentiated", actual.differentiated, expected.differentiated),
    ):
        assert len(ours) == len(theirs), f"{len(ours)} {kind}s, PyTorch has {len(theirs)}"
        for i, (a, e) in enumerate(zip(ours, theirs)):
            yield f"{kind} {i}", np.asarray(a), np.asarray(e)
