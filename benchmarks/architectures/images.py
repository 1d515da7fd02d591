"""Networks whose result is an image: style transfer, a generator, and the U-Net of diffusion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.architectures.layers import Arrays, Draw, Layers, parts


def doubled(ops: Any, x: Any) -> Any:
    """Each cell four times, as `F.interpolate(x, scale_factor=2)`."""
    from opstage import derived

    how: dict[str, Any] = {"mode": "nearest", "coordinates": "asymmetric", "rounding": "floor"}
    return derived.resize(ops, x, scale=2, axes=(2, 3), **how)


@dataclass(frozen=True)
class Style:
    """The network of fast style transfer (Johnson et al. 2016): reflected margins, instance norms, two residual blocks,
    upsampling by repetition."""

    batch: int = 2
    side: int = 64
    width: int = 32

    def module(self) -> Any:
        from torch import nn
        from torch.nn import functional

        def conv(a: int, b: int, kernel: int, stride: int = 1) -> Any:
            margin = nn.ReflectionPad2d(kernel // 2)
            return nn.Sequential(margin, nn.Conv2d(a, b, kernel, stride), nn.InstanceNorm2d(b, affine=True))

        class Residual(nn.Module):
            def __init__(self, width: int) -> None:
                super().__init__()
                self.a, self.b = conv(width, width, 3), conv(width, width, 3)

            def forward(self, x: Any) -> Any:
                return x + self.b(functional.relu(self.a(x)))

        class Net(nn.Module):
            def __init__(self, w: int) -> None:
                super().__init__()
                self.a, self.b, self.c = conv(3, w, 9), conv(w, 2 * w, 3, 2), conv(2 * w, 4 * w, 3, 2)
                self.residuals = nn.Sequential(Residual(4 * w), Residual(4 * w))
                self.d, self.e = conv(4 * w, 2 * w, 3), conv(2 * w, w, 3)
                self.last = nn.Conv2d(w, 3, 9)

            def forward(self, x: Any, target: Any) -> Any:
                x = self.residuals(functional.relu(self.c(functional.relu(self.b(functional.relu(self.a(x)))))))
                x = functional.relu(self.d(functional.interpolate(x, scale_factor=2)))
                x = functional.relu(self.e(functional.interpolate(x, scale_factor=2)))
                return functional.mse_loss(self.last(functional.pad(x, (4, 4, 4, 4), mode="reflect")), target)

        return Net(self.width)

    def program(self, ops: Any, params: Any, x: Any, target: Any) -> Any:
        from opstage import derived

        net = Layers(ops, params)

        def reflected(x: Any, n: int) -> Any:
            return derived.pad(ops, x, padding=((0, 0), (0, 0), (n, n), (n, n)), mode="reflect")

        def conv(name: str, x: Any, margin: int = 1, stride: int = 1) -> Any:
            return net.instance_norm(f"{name}.2", net.conv(f"{name}.1", reflected(x, margin), stride=stride))

        x = ops.relu(conv("a", x, margin=4))
        x = ops.relu(conv("c", ops.relu(conv("b", x, stride=2)), stride=2))
        for name in ("residuals.0", "residuals.1"):
            x = x + conv(f"{name}.b", ops.relu(conv(f"{name}.a", x)))
        x = ops.relu(conv("d", doubled(ops, x)))
        x = ops.relu(conv("e", doubled(ops, x)))
        return ops.mse_loss(net.conv("last", reflected(x, 4)), target)

    def data(self) -> Arrays:
        draw, shape = Draw(), (self.batch, 3, self.side, self.side)
        return draw.floats(*shape), draw.floats(*shape)


@dataclass(frozen=True)
class Generator:
    """The generator of DCGAN (Radford et al. 2016): transposed convolutions with batch norms up to 32 × 32."""

    batch: int = 16
    noise: int = 64
    width: int = 32

    def module(self) -> Any:
        import torch
        from torch import nn
        from torch.nn import functional

        class Net(nn.Module):
            def __init__(self, noise: int, w: int) -> None:
                super().__init__()
                self.a, self.a_norm = nn.ConvTranspose2d(noise, 4 * w, 4), nn.BatchNorm2d(4 * w)
                self.b, self.b_norm = nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1), nn.BatchNorm2d(2 * w)
                self.c, self.c_norm = nn.ConvTranspose2d(2 * w, w, 4, 2, 1), nn.BatchNorm2d(w)
                self.d = nn.ConvTranspose2d(w, 3, 4, 2, 1)

            def forward(self, z: Any, target: Any) -> Any:
                x = functional.relu(self.a_norm(self.a(z)))
                x = functional.relu(self.c_norm(self.c(functional.relu(self.b_norm(self.b(x))))))
                return functional.mse_loss(torch.tanh(self.d(x)), target)

        return Net(self.noise, self.width)

    def program(self, ops: Any, params: Any, z: Any, target: Any) -> Any:
        net = Layers(ops, params)
        x = ops.relu(net.batch_norm("a_norm", net.conv_transpose("a", z)))
        for name in "bc":
            x = net.conv_transpose(name, x, stride=2, padding=1)
            x = ops.relu(net.batch_norm(f"{name}_norm", x))
        return ops.mse_loss(ops.tanh(net.conv_transpose("d", x, stride=2, padding=1)), target)

    def data(self) -> Arrays:
        draw = Draw()
        return draw.floats(self.batch, self.noise, 1, 1), draw.floats(self.batch, 3, 32, 32)


@dataclass(frozen=True)
class DiffusionUnet:
    """A U-Net of denoising diffusion (Ho et al. 2020), without times: residual blocks with group norms and silu, one
    attention over the cells of the middle."""

    batch: int = 4
    side: int = 32
    width: int = 32
    groups: int = 8

    def module(self) -> Any:
        import torch
        from torch import nn
        from torch.nn import functional

        groups = self.groups

        class Residual(nn.Module):
            def __init__(self, a: int, b: int) -> None:
                super().__init__()
                self.norm1, self.conv1 = nn.GroupNorm(groups, a), nn.Conv2d(a, b, 3, padding=1)
                self.norm2, self.conv2 = nn.GroupNorm(groups, b), nn.Conv2d(b, b, 3, padding=1)
                self.skip = nn.Conv2d(a, b, 1)

            def forward(self, x: Any) -> Any:
                h = self.conv1(functional.silu(self.norm1(x)))
                return self.conv2(functional.silu(self.norm2(h))) + self.skip(x)

        class Net(nn.Module):
            def __init__(self, c: int) -> None:
                super().__init__()
                self.stem, self.down0 = nn.Conv2d(3, c, 3, padding=1), Residual(c, c)
                self.halve, self.down1 = nn.Conv2d(c, c, 3, 2, 1), Residual(c, 2 * c)
                self.middle = Residual(2 * c, 2 * c)
                self.qkv, self.out = nn.Conv2d(2 * c, 6 * c, 1), nn.Conv2d(2 * c, 2 * c, 1)
                self.up1, self.up0 = Residual(4 * c, c), Residual(2 * c, c)
                self.norm, self.last = nn.GroupNorm(groups, c), nn.Conv2d(c, 3, 3, padding=1)

            def forward(self, x: Any, target: Any) -> Any:
                a = self.down0(self.stem(x))
                b = self.down1(self.halve(a))
                x = self.middle(b)
                q, k, v = (each.unsqueeze(1) for each in self.qkv(x).flatten(2).transpose(1, 2).chunk(3, 2))
                h = functional.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2)
                x = self.up1(torch.cat([x + self.out(h.reshape(x.shape)), b], 1))
                x = self.up0(torch.cat([functional.interpolate(x, scale_factor=2), a], 1))
                return functional.mse_loss(self.last(functional.silu(self.norm(x))), target)

        return Net(self.width)

    def program(self, ops: Any, params: Any, x: Any, target: Any) -> Any:
        net = Layers(ops, params)

        def activated(name: str, x: Any) -> Any:
            return ops.silu(net.group_norm(name, x, self.groups))

        def residual(name: str, x: Any) -> Any:
            h = net.conv(f"{name}.conv1", activated(f"{name}.norm1", x), padding=1)
            h = net.conv(f"{name}.conv2", activated(f"{name}.norm2", h), padding=1)
            return h + net.conv(f"{name}.skip", x)

        a = residual("down0", net.conv("stem", x, padding=1))
        b = residual("down1", net.conv("halve", a, stride=2, padding=1))
        x = residual("middle", b)
        tokens = ops.permute(ops.flatten(net.conv("qkv", x), start=2), axes=(0, 2, 1))
        q, k, v = (ops.unsqueeze(each, axis=1) for each in parts(ops, tokens, 3, axis=2))
        h = ops.permute(ops.squeeze(ops.scaled_dot_product_attention(q, k, v), axis=1), axes=(0, 2, 1))
        x = residual("up1", ops.concat([x + net.conv("out", ops.reshape(h, shape=x.shape)), b], axis=1))
        x = residual("up0", ops.concat([doubled(ops, x), a], axis=1))
        return ops.mse_loss(net.conv("last", activated("norm", x), padding=1), target)

    def data(self) -> Arrays:
        draw, shape = Draw(), (self.batch, 3, self.side, self.side)
        return draw.floats(*shape), draw.floats(*shape)
