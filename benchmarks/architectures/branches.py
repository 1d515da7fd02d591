"""Convolution networks off the beaten track: branches of long and wide kernels, and videos."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.architectures.layers import Arrays, Draw, Layers


@dataclass(frozen=True)
class Inception:
    """A module of Inception v3 (Szegedy et al. 2016): branches of 1 × 1, 5 × 5, twice 3 × 3 and a mean pool, then
    1 × 7 and 7 × 1, with batch norms."""

    batch: int = 8
    side: int = 35
    width: int = 64

    def module(self) -> Any:
        import torch
        from torch import nn
        from torch.nn import functional

        def conv(a: int, b: int, kernel: Any, padding: Any = 0) -> Any:
            return nn.Sequential(nn.Conv2d(a, b, kernel, padding=padding, bias=False), nn.BatchNorm2d(b), nn.ReLU())

        class Net(nn.Module):
            def __init__(self, w: int) -> None:
                super().__init__()
                self.stem, self.a = nn.Conv2d(3, w, 3, 2), conv(w, 64, 1)
                self.b1, self.b2 = conv(w, 48, 1), conv(48, 64, 5, 2)
                self.c1, self.c2, self.c3 = conv(w, 64, 1), conv(64, 96, 3, 1), conv(96, 96, 3, 1)
                self.d, self.e1 = conv(w, 32, 1), conv(256, 64, 1)
                self.e2, self.e3 = conv(64, 64, (1, 7), (0, 3)), conv(64, 96, (7, 1), (3, 0))
                self.head = nn.Linear(96, 10)

            def forward(self, x: Any, y: Any) -> Any:
                x = functional.relu(self.stem(x))
                branches = [self.a(x), self.b2(self.b1(x)), self.c3(self.c2(self.c1(x)))]
                x = torch.cat([*branches, self.d(functional.avg_pool2d(x, 3, 1, 1))], 1)
                return functional.cross_entropy(self.head(self.e3(self.e2(self.e1(x))).mean((2, 3))), y)

        return Net(self.width)

    def program(self, ops: Any, params: Any, x: Any, y: Any) -> Any:
        net = Layers(ops, params)

        def conv(name: str, x: Any, padding: Any = 0) -> Any:
            return ops.relu(net.batch_norm(f"{name}.1", net.conv(f"{name}.0", x, padding=padding)))

        x = ops.relu(net.conv("stem", x, stride=2))
        branches = [conv("a", x), conv("b2", conv("b1", x), 2), conv("c3", conv("c2", conv("c1", x), 1), 1)]
        x = ops.concat([*branches, conv("d", ops.avg_pool(x, kernel=(3, 3), stride=1, padding=1))], axis=1)
        x = conv("e3", conv("e2", conv("e1", x), (0, 3)), (3, 0))
        return ops.cross_entropy(net.linear("head", ops.reduce_mean(x, axis=(2, 3))), y)

    def data(self) -> Arrays:
        draw = Draw()
        return draw.floats(self.batch, 3, self.side, self.side), draw.below(10, self.batch)


@dataclass(frozen=True)
class Video:
    """Two residual blocks of R3D (Tran et al. 2018): 3 × 3 × 3 convolutions over frames, the second with stride 2."""

    batch: int = 2
    frames: int = 8
    side: int = 32
    width: int = 32

    def module(self) -> Any:
        from torch import nn
        from torch.nn import functional

        class Block(nn.Module):
            def __init__(self, a: int, b: int, stride: int) -> None:
                super().__init__()
                self.a, self.a_norm = nn.Conv3d(a, b, 3, stride, 1, bias=False), nn.BatchNorm3d(b)
                self.b, self.b_norm = nn.Conv3d(b, b, 3, 1, 1, bias=False), nn.BatchNorm3d(b)
                self.skip = nn.Conv3d(a, b, 1, stride, bias=False)

            def forward(self, x: Any) -> Any:
                h = self.b_norm(self.b(functional.relu(self.a_norm(self.a(x)))))
                return functional.relu(h + self.skip(x))

        class Net(nn.Module):
            def __init__(self, w: int) -> None:
                super().__init__()
                self.stem = nn.Conv3d(3, w, (3, 5, 5), (1, 2, 2), (1, 2, 2))
                self.blocks = nn.Sequential(Block(w, w, 1), Block(w, 2 * w, 2))
                self.head = nn.Linear(2 * w, 10)

            def forward(self, x: Any, y: Any) -> Any:
                x = self.blocks(functional.relu(self.stem(x)))
                return functional.cross_entropy(self.head(x.mean((2, 3, 4))), y)

        return Net(self.width)

    def program(self, ops: Any, params: Any, x: Any, y: Any) -> Any:
        net = Layers(ops, params)
        x = ops.relu(net.conv("stem", x, stride=(1, 2, 2), padding=(1, 2, 2)))
        for i, stride in enumerate((1, 2)):
            name = f"blocks.{i}"
            h = ops.relu(net.batch_norm(f"{name}.a_norm", net.conv(f"{name}.a", x, stride=stride, padding=1)))
            h = net.batch_norm(f"{name}.b_norm", net.conv(f"{name}.b", h, padding=1))
            x = ops.relu(h + net.conv(f"{name}.skip", x, stride=stride))
        return ops.cross_entropy(net.linear("head", ops.reduce_mean(x, axis=(2, 3, 4))), y)

    def data(self) -> Arrays:
        draw = Draw()
        return draw.floats(self.batch, 3, self.frames, self.side, self.side), draw.below(10, self.batch)
