"""PyTorch's versions of shipped models, with the names and layouts that PyTorch users give them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


class NamedCnn(nn.Module):
    """The shipped cnn, a layer an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1)
        self.conv4 = nn.Conv2d(64, 64, 3, padding=1)
        self.fc1 = nn.Linear(256, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        x = torch.max_pool2d(x, 2)
        x = torch.relu(self.conv4(torch.relu(self.conv3(x))))
        x = torch.max_pool2d(x, 2).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))


def sequential_cnn() -> nn.Module:
    """The shipped cnn, its layers numbered."""
    layers: list[nn.Module] = []
    for inputs, outputs in [(1, 32), (32, 64)]:
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10))


def sequential_mlp() -> nn.Module:
    """The shipped mlp, whose middle layer is square."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


class Conv1D(nn.Module):
    """GPT-2's linear layer as it was published: weight (in, out)."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / math.sqrt(inputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Any) -> Any:
        return x @ self.weight + self.bias


class FusedAttention(nn.Module):
    """Query, key and value by one layer, as in GPT-2."""

    def __init__(self, width: int, heads: int, linear: Any):
        super().__init__()
        self.heads = heads
        self.c_attn = linear(width, 3 * width)
        self.c_proj = linear(width, width)

    def forward(self, x: Any) -> Any:
        return self.c_proj(attend(*self.c_attn(x).chunk(3, -1), heads=self.heads))


class SplitAttention(nn.Module):
    """Query, key and value by a layer each, as in Llama and BERT."""

    def __init__(self, width: int, heads: int, linear: Any):
        super().__init__()
        self.heads = heads
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, linear(width, width))

    def forward(self, x: Any) -> Any:
        return self.o_proj(attend(self.q_proj(x), self.k_proj(x), self.v_proj(x), heads=self.heads))


def tanh_gelu(x: Any) -> Any:
    return nn.functional.gelu(x, approximate="tanh")


def attend(*parts: Any, heads: int) -> Any:
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int, linear: Any):
        super().__init__()
        self.c_fc = linear(width, hidden)
        self.c_proj = linear(hidden, width)

    def forward(self, x: Any) -> Any:
        return self.c_proj(tanh_gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, attention: Any, linear: Any):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = attention(width, heads, linear)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = Mlp(width, hidden, linear)

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """GPT-2's architecture and names over 256 bytes."""

    def __init__(self, width: int, heads: int, hidden: int, depth: int, length: int, attention: Any, linear: Any):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(256, width),
                "wpe": nn.Embedding(length, width),
                "h": nn.ModuleList([Block(width, heads, hidden, attention, linear) for _ in range(depth)]),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, 256, bias=False)

    def forward(self, x: Any) -> Any:
        parts: Any = self.transformer
        h = parts["wte"](x) + parts["wpe"].weight[: x.shape[1]]
        for block in parts["h"]:
            h = block(h)
        return self.lm_head(parts["ln_f"](h))


class EncoderGpt(nn.Module):
    """The same of PyTorch's own transformer layers."""

    def __init__(self, width: int, heads: int, hidden: int, depth: int, length: int):
        super().__init__()
        self.token_embedding = nn.Embedding(256, width)
        self.pos_embedding = nn.Parameter(torch.randn(1, length, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, hidden, 0.0, tanh_gelu, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)

    def forward(self, x: Any) -> Any:
        h = self.token_embedding(x) + self.pos_embedding[:, : x.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for layer in self.layers:
            h = layer(h, src_mask=mask, is_causal=True)
        return self.head(self.norm(h))


class Lstm(nn.Module):
    """The shipped lstm of PyTorch's own layer, which reads the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 64)
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        _, (hidden, _) = self.lstm(x.squeeze(1).transpose(0, 1))
        return self.fc(hidden[-1])


class CellLstm(nn.Module):
    """The same by a cell that is stepped."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = nn.LSTMCell(8, 64)
        self.classifier = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        state = None
        for row in x.squeeze(1).unbind(1):
            state = self.reader(row, state)
        assert state is not None
        return self.classifier(state[0])


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Any) -> Any:
        h = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(h + (x if self.downsample is None else self.downsample(x)))


class Resnet(nn.Module):
    """The shipped resnet under torchvision's names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(ResidualBlock(16, 16, 1), ResidualBlock(16, 16, 1))
        self.layer2 = nn.Sequential(ResidualBlock(16, 32, 2), ResidualBlock(32, 32, 1))
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer2(self.layer1(x)).mean((2, 3)))
