"""PyTorch's exports as source: read again, the values of the loaded model bit for bit, and PyTorch's to rounding."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import opstage.onnx
import opstage.torch
from opstage.onnx.source import write_source
from tests.interop.test_source import linted, module_of, run, same, trees_of  # noqa: F401  # what is written is linted at the end


class Block(nn.Module):
    """A pre-norm residual MLP."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Attending(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        weights = torch.softmax(q @ k.transpose(2, 3) / (d // self.heads) ** 0.5, dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.attention, self.mlp, self.norm = Attending(width, 2), Block(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(x + self.attention(self.norm(x)))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layers = nn.ModuleList([Layer(8) for _ in range(3)])
        self.head = nn.Linear(8, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Residual(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(x + self.bn2(self.conv2(y)))


def _images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1),
        Residual(6),
        Residual(6),
        Residual(6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(6, 4),
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(3, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x)[0][:, -1])


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], str]] = {
    "blocks": (
        lambda: nn.Sequential(*[Block(6) for _ in range(4)]),
        lambda: torch.randn(2, 5, 6),
        "for i in range(4):",
    ),
    "encoder": (Encoder, lambda: torch.randint(0, 11, (2, 5)), "for i in range(3):"),
    "images": (_images, lambda: torch.randn(2, 3, 8, 8), "if train:"),
    "recurrent": (Recurrent, lambda: torch.randn(2, 6, 3), "ops.scan("),
}


def exported(net: nn.Module, x: torch.Tensor, training: Any) -> Any:
    import onnx

    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            (x,),
            buffer,
            dynamo=False,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "batch"}},
            training=training,
            do_constant_folding=training == torch.onnx.TrainingMode.EVAL,
        )
    return onnx.load_model_from_string(buffer.getvalue())


@pytest.mark.parametrize("name", MODULES)
def test_exports_are_written_and_read_again(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, batch, wanted = MODULES[name]
    net, x = make(), batch()
    for parameter in net.parameters():  # equal first values would be one tensor in the file
        nn.init.normal_(parameter, std=0.3)
    for buffer in filter(torch.is_floating_point, net.buffers()):
        nn.init.uniform_(buffer, 0.5, 2.0)
    mode = torch.onnx.TrainingMode.PRESERVE if name == "images" else torch.onnx.TrainingMode.EVAL
    net.eval()
    proto = exported(net, x, mode)
    module = same(proto, tmp_path, x.numpy())
    text = Path(module.__file__).read_text()
    assert wanted in text and "onnx::" not in text
    found = run(module.program, trees_of(module), (x.numpy(),))[0]
    np.testing.assert_allclose(found, net(x).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_programs_of_torch_export_are_written(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, batch, wanted = MODULES[name]
    net, x = make().eval(), batch()
    program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    loaded = opstage.torch.load(program)
    write_source(loaded, tmp_path / "net.py")
    module = module_of(tmp_path / "net.py")
    text = (tmp_path / "net.py").read_text()
    assert wanted in text and "imported from a PyTorch program" in text
    trees = trees_of(module)
    found, ours = run(module.program, trees, (x.numpy(),)), run(loaded.by_name, loaded.trees, (x.numpy(),))
    assert [each.tobytes() for each in found] == [each.tobytes() for each in ours]
    np.testing.assert_allclose(found[0], net(x).detach().numpy(), rtol=1e-4, atol=1e-5)
