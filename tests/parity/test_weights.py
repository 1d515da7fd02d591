"""Weights moved from PyTorch to Opstage and back: the same logits on both sides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import opstage
from opstage import Options
from opstage.init import build
from opstage.interop.weights import export_weights, import_weights, read_state_dict, write_state_dict
from opstage.models import cnn, gpt, lstm, mlp, model, resnet
from opstage.training.trainer import ScalarTrainer, scalar_trainer
from tests.parity import torch_models as theirs

GPT = gpt.Config(length=12, width=24, depth=3, heads=4, hidden=96)
SIZES = (24, 4, 96, 3, 12)

PAIRS: dict[str, tuple[str, Any, Callable[[], torch.nn.Module]]] = {
    "cnn, named layers": ("cnn", cnn, theirs.NamedCnn),
    "cnn, numbered layers": ("cnn", cnn, theirs.sequential_cnn),
    "mlp, a square layer": ("mlp", mlp, theirs.sequential_mlp),
    "lstm, PyTorch's layer": ("lstm", lstm, theirs.Lstm),
    "lstm, PyTorch's cell": ("lstm", lstm, theirs.CellLstm),
    "resnet": ("resnet", resnet, theirs.Resnet),
    "gpt, fused": ("gpt", gpt, lambda: theirs.Gpt(*SIZES, theirs.FusedAttention, torch.nn.Linear)),
    "gpt, transposed as published": ("gpt", gpt, lambda: theirs.Gpt(*SIZES, theirs.FusedAttention, theirs.Conv1D)),
    "gpt, apart": ("gpt", gpt, lambda: theirs.Gpt(*SIZES, theirs.SplitAttention, torch.nn.Linear)),
    "gpt, apart and transposed": ("gpt", gpt, lambda: theirs.Gpt(*SIZES, theirs.SplitAttention, theirs.Conv1D)),
    "gpt, PyTorch's layers": ("gpt", gpt, lambda: theirs.EncoderGpt(*SIZES)),
}


def ours(name: str, seed: int = 0) -> ScalarTrainer:
    chosen = model(name, GPT if name == "gpt" else None)
    params = build(chosen.init, dtype="float64", seed=seed)
    state = None if chosen.state is None else build(chosen.state, dtype="float64", seed=seed)
    return scalar_trainer(chosen.loss, params, options=Options(dtype="float64"), state=state)


def our_logits(name: str, trainer: ScalarTrainer, module: Any, x: Any) -> Any:
    config = GPT if name == "gpt" else module.Config()

    def program(ops: Any, *args: Any) -> Any:
        out = module.logits(ops, *args, config=config)
        return out[0] if isinstance(out, tuple) else out

    state = () if trainer.state is None else (trainer.state,)
    return opstage.run(program, trainer.get_params(), *state, x, options=Options(dtype="float64"))


def their_logits(net: torch.nn.Module, x: Any) -> Any:
    with torch.no_grad():
        return net(torch.from_numpy(x)).numpy()


def random_net(make: Callable[[], torch.nn.Module], seed: int) -> torch.nn.Module:
    """Every tensor of its own, the statistics too, so that no mix-up goes unseen."""
    torch.manual_seed(seed)
    net = make().double().eval()
    with torch.no_grad():
        for tensor in [*net.parameters(), *net.buffers()]:
            if tensor.dtype.is_floating_point:
                tensor.copy_(torch.rand_like(tensor) + 0.5 if tensor.dim() == 1 else 0.3 * torch.randn_like(tensor))
    return net


def inputs(name: str) -> Any:
    rng = np.random.default_rng(3)
    return rng.integers(0, 256, (2, 9)) if name == "gpt" else rng.standard_normal((3, 1, 8, 8))


@pytest.mark.parametrize("pair", PAIRS)
def test_from_pytorch(tmp_path: Path, pair: str) -> None:
    name, module, make = PAIRS[pair]
    net, trainer, x = random_net(make, 1), ours(name), inputs(name)
    save_file(net.state_dict(), tmp_path / "torch.safetensors")
    import_weights(trainer, read_state_dict(tmp_path / "torch.safetensors"))
    np.testing.assert_allclose(our_logits(name, trainer, module, x), their_logits(net, x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("pair", PAIRS)
def test_to_pytorch(tmp_path: Path, pair: str) -> None:
    """The file is built like one of the model's own, and PyTorch loads it with strict=True."""
    name, module, make = PAIRS[pair]
    net, trainer, x = random_net(make, 1), ours(name, seed=5), inputs(name)
    save_file(net.state_dict(), tmp_path / "like.safetensors")
    values = export_weights(trainer.export(), read_state_dict(tmp_path / "like.safetensors"))
    write_state_dict(tmp_path / "ours.safetensors", values)
    net.load_state_dict(load_file(tmp_path / "ours.safetensors"), strict=True)
    np.testing.assert_allclose(their_logits(net, x), our_logits(name, trainer, module, x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_floats_come_exactly(tmp_path: Path, dtype: Any) -> None:
    net = random_net(theirs.NamedCnn, 2).to(dtype)
    save_file(net.state_dict(), tmp_path / "narrow.safetensors")
    trainer = ours("cnn")
    import_weights(trainer, read_state_dict(tmp_path / "narrow.safetensors"))
    np.testing.assert_array_equal(trainer.export().params["dense.weight"], net.fc1.weight.detach().double().numpy())


def test_without_a_model_to_be_like_the_names_are_pytorchs_own(tmp_path: Path) -> None:
    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(
                [torch.nn.Linear(64, 256), torch.nn.Linear(256, 256), torch.nn.Linear(256, 10)]
            )

        def forward(self, x: Any) -> Any:
            first, second, last = self.layers
            return last(torch.relu(second(torch.relu(first(x.flatten(1))))))

    trainer, x, net = ours("mlp"), inputs("mlp"), Layers().double()
    write_state_dict(tmp_path / "ours.safetensors", export_weights(trainer.export()))
    net.load_state_dict(load_file(tmp_path / "ours.safetensors"))
    np.testing.assert_allclose(their_logits(net, x), our_logits("mlp", trainer, mlp, x), rtol=1e-9)


def test_without_a_model_to_be_like_a_cell_is_pytorchs_own(tmp_path: Path) -> None:
    class Layers(theirs.Lstm):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = self.lstm, self.fc
            del self.lstm, self.fc

        def forward(self, x: Any) -> Any:
            _, (hidden, _) = self.cell(x.squeeze(1).transpose(0, 1))
            return self.head(hidden[-1])

    trainer, x, net = ours("lstm", seed=2), inputs("lstm"), Layers().double()
    write_state_dict(tmp_path / "ours.safetensors", export_weights(trainer.export()))
    net.load_state_dict(load_file(tmp_path / "ours.safetensors"), strict=True)
    np.testing.assert_allclose(their_logits(net, x), our_logits("lstm", trainer, lstm, x), rtol=1e-9, atol=1e-12)
