"""Whole modules, exported and imported, beside PyTorch: outputs, gradients, statistics, and steps; and the guide."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim
from torch.nn import functional as F  # noqa: N812

import opstage
import opstage.torch
from opstage.interop.torch.model import Config, trainable
from tests.docs.blocks import DOCS, blocks
from tests.parity.exported import models

DOUBLE = opstage.Options(dtype="float64")
B, T = Dim("batch", max=64), Dim("length", min=2, max=16)


@dataclass(frozen=True)
class Case:
    make: Callable[[], torch.nn.Module]
    args: Callable[[int, int], tuple[tuple[Any, ...], dict[str, Any]]]
    sizes: Any
    names: tuple[str, ...] = ("batch",)


def _x(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.float64)


def _tokens(n: int, t: int) -> Any:
    padding = torch.zeros(n, t, dtype=torch.bool)
    padding[0, -1] = True
    return (torch.randint(0, 11, (n, t)),), {"padding": padding}


CASES = {
    "mlp": Case(models.mlp, lambda n, t: ((_x(n, 6),), {}), ({0: B},)),
    "cnn": Case(models.Cnn, lambda n, t: ((_x(n, 1, 6, 6),), {}), ({0: B},)),
    "resnet": Case(models.resnet, lambda n, t: ((_x(n, 3, 8, 8),), {}), ({0: B},)),
    "encoder": Case(models.Encoder, _tokens, {"tokens": {0: B, 1: T}, "padding": {0: B, 1: T}}, ("batch", "length")),
    "vit": Case(models.Vit, lambda n, t: ((_x(n, 3, 8, 8),), {}), ({0: B},)),
    "lstm": Case(models.Lstm, lambda n, t: ((_x(n, 5, 3),), {}), ({0: B},)),
    "gru": Case(models.Gru, lambda n, t: ((_x(5, n, 3),), {}), ({1: B},)),
    "counting": Case(models.Counting, lambda n, t: ((_x(n, 3),), {}), ({0: B},)),
    "tied": Case(models.Tied, lambda n, t: ((torch.randint(0, 7, (n, t)),), {}), ({0: B, 1: T},), ("batch", "length")),
}


def _made(name: str, *, train: bool) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    case = CASES[name]
    module = case.make().double().train(train)
    args, keywords = case.args(3, 4)
    program = torch.export.export(module, args, keywords, dynamic_shapes=case.sizes)
    return module, opstage.torch.load(program)


def _arrays(tree: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda x: x.detach().numpy() if isinstance(x, torch.Tensor) else x, tree)


def _leaves(tree: Any) -> list[Any]:
    return [x for x in torch.utils._pytree.tree_leaves(tree) if x is not None]


@pytest.mark.parametrize("exported_in_training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_gradients_and_statistics(name: str, exported_in_training: bool) -> None:
    module, model = _made(name, train=exported_in_training)
    args, keywords = CASES[name].args(5, 6)  # other sizes than those of the export
    inputs = [*_arrays(args), *_arrays(list(keywords.values()))]
    state = [] if model.state is None else [model.state]
    for train in (False, True) if name in ("cnn", "resnet", "counting") else (False,):
        module.train(train)
        module.zero_grad()
        expected = module(*args, **keywords)
        result = opstage.run(model, model.params, *state, *inputs, options=DOUBLE, train=train)
        found, after = result if state else (result, {})
        for a, b in zip(_leaves(found), _leaves(expected), strict=True):
            np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-9, atol=1e-11)
        named = dict(module.named_buffers())
        for buffer, value in after.items():
            np.testing.assert_allclose(value, named[buffer].numpy(), rtol=1e-12)

        def loss(ops: Any, params: Any, training: bool = train) -> Any:
            constants = [ops_const(ops, each) for each in (*state, *inputs)]
            out = model(ops, params, *constants, train=training)
            return ops.sum(ops.square(_leaves(out[0] if state else out)[0]))

        _, gradients = opstage.value_and_grad(loss, model.params, options=DOUBLE)
        (_leaves(expected)[0] ** 2).sum().backward()
        for parameter, value in module.named_parameters():
            if value.grad is not None:
                own = gradients[model.ties.get(parameter, parameter)]
                np.testing.assert_allclose(own, value.grad.numpy(), rtol=1e-7, atol=1e-9, err_msg=parameter)
        if state:
            state = [after]


def ops_const(ops: Any, tree: Any) -> Any:
    """Arrays as constants of a program."""
    if isinstance(tree, dict):
        return {key: ops_const(ops, value) for key, value in tree.items()}
    return ops.const(tree)


@pytest.mark.parametrize("name", CASES)
def test_every_size_is_proved(name: str) -> None:
    _, model = _made(name, train=False)
    text = str(model.inputs)
    assert all(f"'{each}'" in text for each in CASES[name].names)
    report = model.check()
    assert report.ok, report
    assert "batch <= 64" in text


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_training_steps_are_pytorchs(optimizer: str) -> None:
    module, model = _made("cnn", train=False)
    module.train()
    if optimizer == "sgd":
        ours: Any = opstage.optim.sgd(lr=0.1)
        theirs: Any = torch.optim.SGD(module.parameters(), lr=0.1)
    else:
        ours = opstage.optim.adamw(lr=0.01, weight_decay=0.1)
        theirs = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.1)
    tuned = trainable(model, Config(loss="cross_entropy"))
    trainer = opstage.scalar_trainer(tuned.loss, tuned.init, *tuned.batch, options=DOUBLE, state=tuned.state)
    state = trainer.init_optim(ours)
    for step in range(4):
        torch.manual_seed(step)
        x, y = _x(6, 1, 6, 6), torch.randint(0, 3, (6,))
        theirs.zero_grad()
        expected = F.cross_entropy(module(x), y)
        expected.backward()
        theirs.step()
        loss = float(trainer.advance(ours, state, x.numpy(), y.numpy()).loss)
        np.testing.assert_allclose(loss, expected.item(), rtol=1e-9)


# The page of the guide on PyTorch modules, done literally: the guide's own test, without torch, leaves it out ---------


def test_the_page_prints_what_it_says() -> None:
    names: dict[str, Any] = {}
    found = blocks(DOCS / "guide" / "importing-torch.md")
    assert [block.language for block in found].count("py") == 2
    for block, after in itertools.pairwise(found):
        if block.language == "py":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(block.text, names)
            assert printed.getvalue() == after.text
