"""Classifiers of images, a segmenter, and the network of an agent that plays from pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.architectures.layers import Arrays, Draw, Layers, of_each_cell, parts


@dataclass(frozen=True)
class Dqn:
    """The deep Q-network of Atari games (Mnih et al. 2015) on four frames of 84 × 84, Huber loss."""

    batch: int = 32
    hidden: int = 512
    actions: int = 18

    def module(self) -> Any:
        from torch import nn
        from torch.nn import functional

        class Net(nn.Module):
            def __init__(self, hidden: int, actions: int) -> None:
                super().__init__()
                self.a, self.b, self.c = nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3)
                self.d, self.e = nn.Linear(3136, hidden), nn.Linear(hidden, actions)

            def forward(self, x: Any, action: Any, target: Any) -> Any:
                x = functional.relu(self.c(functional.relu(self.b(functional.relu(self.a(x))))))
                values = self.e(functional.relu(self.d(x.flatten(1))))
                return functional.huber_loss(values.gather(1, action[:, None])[:, 0], target)

        return Net(self.hidden, self.actions)

    def program(self, ops: Any, params: Any, x: Any, action: Any, target: Any) -> Any:
        from opstage import derived

        net = Layers(ops, params)
        x = ops.relu(net.conv("a", x, stride=4))
        x = ops.relu(net.conv("c", ops.relu(net.conv("b", x, stride=2))))
        values = net.linear("e", ops.relu(net.linear("d", ops.flatten(x, start=1))))
        taken = derived.take_along_axis(ops, values, ops.unsqueeze(action, axis=1), axis=1)
        return derived.huber(ops, ops.squeeze(taken, axis=1), target)

    def data(self) -> Arrays:
        draw = Draw()
        return draw.floats(self.batch, 4, 84, 84), draw.below(self.actions, self.batch), draw.floats(self.batch)


@dataclass(frozen=True)
class Aspp:
    """Atrous spatial pyramid pooling of DeepLab (Chen et al. 2017) behind a dilated layer: 3 × 3 kernels 6, 12 and 18
    apart on a map of 12 × 12, a label in each cell."""

    batch: int = 8
    channels: int = 96
    width: int = 64
    side: int = 12
    classes: int = 21

    def module(self) -> Any:
        import torch
        from torch import nn
        from torch.nn import functional

        class Net(nn.Module):
            def __init__(self, channels: int, width: int, classes: int) -> None:
                super().__init__()
                self.first = nn.Conv2d(channels, channels, 3, padding=2, dilation=2, bias=False)
                self.first_norm = nn.BatchNorm2d(channels)
                self.branches = nn.ModuleList([nn.Conv2d(channels, width, 1, bias=False)])
                self.branches += [nn.Conv2d(channels, width, 3, padding=d, dilation=d, bias=False) for d in (6, 12, 18)]
                self.norms = nn.ModuleList([nn.BatchNorm2d(width) for _ in range(4)])
                self.joined, self.joined_norm = nn.Conv2d(4 * width, width, 1, bias=False), nn.BatchNorm2d(width)
                self.head = nn.Conv2d(width, classes, 1)

            def forward(self, x: Any, y: Any) -> Any:
                x = functional.relu(self.first_norm(self.first(x)))
                x = torch.cat([functional.relu(norm(branch(x))) for branch, norm in zip(self.branches, self.norms)], 1)
                return functional.cross_entropy(self.head(functional.relu(self.joined_norm(self.joined(x)))), y)

        return Net(self.channels, self.width, self.classes)

    def program(self, ops: Any, params: Any, x: Any, y: Any) -> Any:
        net = Layers(ops, params)
        x = ops.relu(net.batch_norm("first_norm", net.conv("first", x, padding=2, dilation=2)))
        branches = [net.conv("branches.0", x)]
        branches += [net.conv(f"branches.{i}", x, padding=d, dilation=d) for i, d in ((1, 6), (2, 12), (3, 18))]
        x = ops.concat([ops.relu(net.batch_norm(f"norms.{i}", each)) for i, each in enumerate(branches)], axis=1)
        x = ops.relu(net.batch_norm("joined_norm", net.conv("joined", x)))
        return of_each_cell(ops, net.conv("head", x), y)

    def data(self) -> Arrays:
        draw, cells = Draw(), (self.side, self.side)
        return draw.floats(self.batch, self.channels, *cells), draw.below(self.classes, self.batch, *cells)


class Stage(NamedTuple):
    """An inverted residual block: channels in, within and out, the side of its kernel, and its stride."""

    inputs: int
    within: int
    outputs: int
    kernel: int
    stride: int

    @property
    def squeezed(self) -> int:
        return max(8, self.within // 4)

    @property
    def has_skip(self) -> bool:
        return self.inputs == self.outputs and self.stride == 1


STAGES = tuple(
    Stage(*sizes)
    for sizes in (
        (16, 16, 16, 3, 1),
        (16, 64, 24, 3, 2),
        (24, 72, 40, 5, 2),
        (40, 120, 40, 5, 1),
        (40, 240, 80, 3, 2),
        (80, 200, 80, 3, 1),
        (80, 480, 112, 3, 1),
        (112, 672, 160, 5, 2),
    )
)


@dataclass(frozen=True)
class InvertedResiduals:
    """Blocks of MobileNetV3 (Howard et al. 2019) or, with silu and sigmoid, of EfficientNet (Tan and Le 2019):
    pointwise, depthwise, squeeze and excitation, pointwise, with batch norms."""

    activation: str
    gate: str
    batch: int = 8
    side: int = 96
    stages: tuple[Stage, ...] = STAGES

    def module(self) -> Any:
        import torch
        from torch import nn
        from torch.nn import functional

        activation, gate = getattr(functional, self.activation), getattr(functional, self.gate)

        def conv(a: int, b: int, kernel: int, stride: int = 1, groups: int = 1) -> Any:
            plain = nn.Conv2d(a, b, kernel, stride, kernel // 2, groups=groups, bias=False)
            return nn.Sequential(plain, nn.BatchNorm2d(b))

        class Block(nn.Module):
            def __init__(self, stage: Stage) -> None:
                super().__init__()
                self.stage = stage
                self.expand = conv(stage.inputs, stage.within, 1)
                self.depthwise = conv(stage.within, stage.within, stage.kernel, stage.stride, stage.within)
                self.squeeze = nn.Conv2d(stage.within, stage.squeezed, 1)
                self.excite = nn.Conv2d(stage.squeezed, stage.within, 1)
                self.project = conv(stage.within, stage.outputs, 1)

            def forward(self, x: Any) -> Any:
                h = activation(self.depthwise(activation(self.expand(x))))
                h = h * gate(self.excite(functional.relu(self.squeeze(h.mean((2, 3), keepdim=True)))))
                h = self.project(h)
                return x + h if self.stage.has_skip else h

        class Net(nn.Module):
            def __init__(self, stages: tuple[Stage, ...]) -> None:
                super().__init__()
                self.stem = conv(3, stages[0].inputs, 3, 2)
                self.blocks = nn.Sequential(*map(Block, stages))
                self.head = nn.Linear(stages[-1].outputs, 10)

            def forward(self, x: Any, y: Any) -> Any:
                x = self.blocks(activation(self.stem(x)))
                return functional.cross_entropy(self.head(torch.mean(x, (2, 3))), y)

        return Net(self.stages)

    def program(self, ops: Any, params: Any, x: Any, y: Any) -> Any:
        net, activation, gate = Layers(ops, params), getattr(ops, self.activation), getattr(ops, self.gate)

        def conv(name: str, x: Any, **how: Any) -> Any:
            return net.batch_norm(f"{name}.1", net.conv(f"{name}.0", x, **how))

        x = activation(conv("stem", x, stride=2, padding=1))
        for i, stage in enumerate(self.stages):
            name = f"blocks.{i}"
            h = activation(conv(f"{name}.expand", x))
            how = {"stride": stage.stride, "padding": stage.kernel // 2, "groups": stage.within}
            h = activation(conv(f"{name}.depthwise", h, **how))
            mean = ops.reduce_mean(h, axis=(2, 3), keepdims=True)
            h = h * gate(net.conv(f"{name}.excite", ops.relu(net.conv(f"{name}.squeeze", mean))))
            h = conv(f"{name}.project", h)
            x = x + h if stage.has_skip else h
        return ops.cross_entropy(net.linear("head", ops.reduce_mean(x, axis=(2, 3))), y)

    def data(self) -> Arrays:
        draw = Draw()
        return draw.floats(self.batch, 3, self.side, self.side), draw.below(10, self.batch)


@dataclass(frozen=True)
class ConvNext:
    """Blocks of ConvNeXt (Liu et al. 2022): depthwise 7 × 7, layer norm, and two dense layers over channels."""

    batch: int = 8
    side: int = 96
    width: int = 96
    blocks: int = 3

    def module(self) -> Any:
        from torch import nn
        from torch.nn import functional

        class Block(nn.Module):
            def __init__(self, width: int) -> None:
                super().__init__()
                self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
                self.norm = nn.LayerNorm(width)
                self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

            def forward(self, x: Any) -> Any:
                h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
                return x + self.down(functional.gelu(self.up(h))).permute(0, 3, 1, 2)

        class Net(nn.Module):
            def __init__(self, width: int, blocks: int) -> None:
                super().__init__()
                self.stem = nn.Conv2d(3, width, 4, 4)
                self.blocks = nn.Sequential(*[Block(width) for _ in range(blocks)])
                self.head = nn.Linear(width, 10)

            def forward(self, x: Any, y: Any) -> Any:
                return functional.cross_entropy(self.head(self.blocks(self.stem(x)).mean((2, 3))), y)

        return Net(self.width, self.blocks)

    def program(self, ops: Any, params: Any, x: Any, y: Any) -> Any:
        net = Layers(ops, params)
        x = net.conv("stem", x, stride=4)
        for i in range(self.blocks):
            name = f"blocks.{i}"
            h = ops.permute(net.conv(f"{name}.depthwise", x, padding=3, groups=self.width), axes=(0, 2, 3, 1))
            h = ops.gelu(net.linear(f"{name}.up", net.layer_norm(f"{name}.norm", h)), approximate="none")
            x = x + ops.permute(net.linear(f"{name}.down", h), axes=(0, 3, 1, 2))
        return ops.cross_entropy(net.linear("head", ops.reduce_mean(x, axis=(2, 3))), y)

    def data(self) -> Arrays:
        draw = Draw()
        return draw.floats(self.batch, 3, self.side, self.side), draw.below(10, self.batch)


@dataclass(frozen=True)
class Vit:
    """A vision transformer (Dosovitskiy et al. 2021): patches of 8 × 8, pre-norm blocks, the mean of the tokens."""

    batch: int = 8
    side: int = 64
    width: int = 128
    heads: int = 4
    blocks: int = 4

    def module(self) -> Any:
        import torch
        from torch import nn
        from torch.nn import functional

        class Block(nn.Module):
            def __init__(self, width: int, heads: int) -> None:
                super().__init__()
                self.heads = heads
                self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
                self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
                self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

            def forward(self, x: Any) -> Any:
                q, k, v = (
                    each.unflatten(2, (self.heads, -1)).transpose(1, 2) for each in self.qkv(self.before(x)).chunk(3, 2)
                )
                x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
                return x + self.down(functional.gelu(self.up(self.between(x))))

        class Net(nn.Module):
            def __init__(self, size: Vit) -> None:
                super().__init__()
                self.patches = nn.Conv2d(3, size.width, 8, 8)
                self.places = nn.Parameter(0.02 * torch.randn((size.side // 8) ** 2, size.width))
                self.blocks = nn.Sequential(*[Block(size.width, size.heads) for _ in range(size.blocks)])
                self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, 10)

            def forward(self, x: Any, y: Any) -> Any:
                x = self.patches(x).flatten(2).transpose(1, 2) + self.places
                return functional.cross_entropy(self.head(self.norm(self.blocks(x)).mean(1)), y)

        return Net(self)

    def program(self, ops: Any, params: Any, x: Any, y: Any) -> Any:
        net = Layers(ops, params)
        x = ops.permute(ops.flatten(net.conv("patches", x, stride=8), start=2), axes=(0, 2, 1)) + params["places"]
        n, t, d = x.shape

        def heads(x: Any) -> Any:
            return ops.permute(ops.reshape(x, shape=(n, t, self.heads, d // self.heads)), axes=(0, 2, 1, 3))

        for i in range(self.blocks):
            name = f"blocks.{i}"
            q, k, v = map(heads, parts(ops, net.linear(f"{name}.qkv", net.layer_norm(f"{name}.before", x)), 3, axis=2))
            h = ops.permute(ops.scaled_dot_product_attention(q, k, v), axes=(0, 2, 1, 3))
            x = x + net.linear(f"{name}.out", ops.reshape(h, shape=(n, t, d)))
            h = ops.gelu(net.linear(f"{name}.up", net.layer_norm(f"{name}.between", x)), approximate="none")
            x = x + net.linear(f"{name}.down", h)
        return ops.cross_entropy(net.linear("head", ops.reduce_mean(net.layer_norm("norm", x), axis=1)), y)

    def data(self) -> Arrays:
        draw = Draw()
        return draw.floats(self.batch, 3, self.side, self.side), draw.below(10, self.batch)
