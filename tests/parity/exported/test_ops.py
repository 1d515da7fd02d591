"""Every op of the table, exported and imported, beside PyTorch's own: values and gradients, in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import opstage
import opstage.torch
from tests.parity.exported import ops
from tests.parity.exported.further_ops import COMPLEX, FURTHER
from tests.parity.exported.ops import Table

FAMILIES = {**ops.FAMILIES, "complex": COMPLEX, **FURTHER}

DOUBLE = opstage.Options(dtype="float64")


class Several(torch.nn.Module):
    """The functions of a table, each on tensors of its own; the results by name."""

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.table = table

    def forward(self, inputs: dict[str, list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {name: function(*inputs[name]) for name, (function, _) in self.table.items()}


def _weights(shape: tuple[int, ...]) -> Any:
    """Cotangents that differ from element to element."""
    return np.linspace(0.5, 1.5, int(np.prod(shape)) or 1)[: int(np.prod(shape))].reshape(shape)


def _family(name: str) -> tuple[Any, Any]:
    """The model of a family, and its results with the gradients of all inputs."""
    table = FAMILIES[name]
    inputs = {op: [x.clone() for x in xs] for op, (_, xs) in table.items()}
    model = opstage.torch.load(torch.export.export(Several(table), (inputs,)))
    arrays = {op: [x.numpy() for x in xs] for op, xs in inputs.items()}
    outputs = opstage.run(model, {}, arrays, options=DOUBLE)

    def total(ops: Any, given: Any) -> Any:
        found = model(ops, {}, given)
        parts = [
            ops.sum(ops.mul(found[op], ops.const(_weights(found[op].shape))))
            for op in table
            if found[op].dtype.kind == "f" and all(x.dtype.kind == "f" for x in given[op])
        ]
        return ops.sum(ops.stack(parts)) if parts else ops.full(shape=(), value=0.0)

    _, gradients = opstage.value_and_grad(total, arrays, options=DOUBLE)
    return outputs, gradients


LOOSE = {"hardsigmoid": 1e-7}
"""Ops whose gradient PyTorch computes with constants of single precision."""


@pytest.mark.parametrize("family", FAMILIES)
def test_ops_are_pytorchs(family: str) -> None:
    outputs, gradients = _family(family)
    wrong = []
    for op, (function, tensors) in FAMILIES[family].items():
        try:
            _compare(function, tensors, outputs[op], gradients[op], LOOSE.get(op, 1e-8))
        except AssertionError as error:
            wrong.append(f"{op}: {error}")
    assert not wrong, "\n".join(wrong)


def _compare(function: Any, tensors: Any, found: Any, gradients: Any, rtol: float) -> None:
    inputs = [x.clone().requires_grad_(x.is_floating_point()) for x in tensors]
    expected = function(*inputs)
    assert found.shape == tuple(expected.shape)
    kind = np.dtype(str(expected.dtype).removeprefix("torch.")).kind
    assert found.dtype.kind == ("i" if kind == "u" else kind)
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-9, atol=1e-11)
    if not (expected.requires_grad and all(x.is_floating_point() for x in tensors)):
        return
    expected.backward(torch.from_numpy(_weights(tuple(expected.shape))))
    for x, gradient in zip(inputs, gradients):
        wanted = np.zeros(x.shape) if x.grad is None else x.grad.numpy()
        np.testing.assert_allclose(gradient, wanted, rtol=rtol, atol=1e-10)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: torch.view_as_complex(x), "an output is complex; .*torch.view_as_real"),
        (lambda x: torch.view_as_complex(x).sin().abs(), "the op is not known of complex tensors"),
        (lambda x: (torch.view_as_complex(x) ** 0.5).abs(), "to the power 0.5 is not known"),
    ],
)
def test_what_is_not_known_of_complex_tensors(function: Any, message: str) -> None:
    program = torch.export.export(Several({"f": (function, ())}), ({"f": [torch.ones(3, 2)]},))
    with pytest.raises(opstage.OpstageError, match=message):
        opstage.torch.load(program)


def test_complex_inputs_and_parameters_are_refused() -> None:
    z = torch.ones(3, dtype=torch.complex64)
    with pytest.raises(opstage.OpstageError, match="complex64"):
        opstage.torch.load(torch.export.export(Several({"f": (lambda x: x.abs(), ())}), ({"f": [z]},)))
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(z)
    module.forward = lambda x: (module.w * x).abs()
    with pytest.raises(opstage.OpstageError, match="complex64"):
        opstage.torch.load(torch.export.export(module, (torch.ones(3),)))
