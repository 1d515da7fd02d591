"""Bounds beside auto_LiRPA's, on the same networks: never looser than 1.01 of its IBP, and 1.05 of its CROWN.

Ours are in float64: what float32's rounding adds is no part of the methods, and auto_LiRPA, which computes in float32,
does not allow for rounding at all.
Its release 0.3 asks for an older PyTorch, so it is no extra: `pip install --no-deps auto-LiRPA==0.3 appdirs` beside the
extra `parity`. Three internals that newer PyTorch and NumPy have moved are put where it looks for them, to trace alone.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from opstage import Box, Options, bounds


@pytest.fixture
def lirpa(monkeypatch: pytest.MonkeyPatch) -> Any:
    """auto_LiRPA, or a skip where it is not installed."""
    import torch.onnx.symbolic_helper as helper
    from torch.onnx._internal.torchscript_exporter._globals import GLOBALS

    moved: Any = ModuleType("numpy.lib.arraysetops")
    moved.isin = np.isin
    monkeypatch.setitem(sys.modules, moved.__name__, moved)
    monkeypatch.setattr(np, "Inf", np.inf, raising=False)
    monkeypatch.setattr(
        helper,
        "_set_opset_version",
        lambda version: setattr(GLOBALS, "export_onnx_opset_version", version),
        raising=False,
    )
    monkeypatch.setattr(
        torch._C.Node, "__getitem__", lambda node, key: getattr(node, node.kindOf(key))(key), raising=False
    )
    return pytest.importorskip("auto_LiRPA", reason="auto_LiRPA is not installed: see above")


def dense(activation: str) -> Any:
    def network(ops: Any, p: Any, x: Any) -> Any:
        for weight, bias in (p[:2], p[2:4]):
            x = getattr(ops, activation)(ops.linear(weight, bias, x))
        return ops.linear(p[4], p[5], x)

    return network


def convolutions(ops: Any, p: Any, x: Any) -> Any:
    for kernel, bias in (p[:2], p[2:4]):
        x = ops.relu(ops.conv(kernel, bias, x, stride=2, padding=1))
    return ops.linear(p[4], p[5], ops.reshape(x, shape=(x.shape[0], -1)))


def dense_modules(activation: Any) -> list[Any]:
    return [nn.Linear(20, 50), activation(), nn.Linear(50, 50), activation(), nn.Linear(50, 10)]


def convolution_modules() -> list[Any]:
    first, second = (nn.Conv2d(*channels, 3, stride=2, padding=1) for channels in ((1, 4), (4, 8)))
    return [first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(32, 10)]


NETWORKS: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    "relu": (dense("relu"), lambda: dense_modules(nn.ReLU), (4, 20)),
    "sigmoid": (dense("sigmoid"), lambda: dense_modules(nn.Sigmoid), (4, 20)),
    "tanh": (dense("tanh"), lambda: dense_modules(nn.Tanh), (4, 20)),
    "conv": (convolutions, convolution_modules, (4, 1, 8, 8)),
}


@pytest.mark.parametrize("eps", [1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("name", NETWORKS)
def test_bounds_are_as_tight_as_those_of_auto_lirpa(name: str, eps: float, lirpa: Any) -> None:
    from auto_LiRPA.perturbations import PerturbationLpNorm

    torch.manual_seed(0)
    network, modules, shape = NETWORKS[name]
    net, x = nn.Sequential(*modules()), torch.rand(*shape)
    params = [p.detach().numpy().astype("f8") for p in net.parameters()]
    bounded = lirpa.BoundedModule(net, x)
    ball = lirpa.BoundedTensor(x, PerturbationLpNorm(norm=np.inf, eps=eps))
    for method, theirs, looser in (("interval", "IBP", 1.01), ("crown", "CROWN", 1.05)):
        low, high = (end.detach().numpy() for end in bounded.compute_bounds(x=(ball,), method=theirs))
        inputs = Box.around(x.numpy().astype("f8"), float(np.float32(eps)))
        box: Any = bounds(network, params, inputs, method=method, options=Options(dtype="float64"))  # type: ignore[arg-type]
        assert (box.upper - box.lower <= looser * (high - low)).all(), method
