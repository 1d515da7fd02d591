"""Samples: convolutions. The references are the definition, one product at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, given, halves, normal, zeros

Place = tuple[int, ...]


def _each(value: Any, rank: int) -> Place:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def _products(
    shape: Place, counts: Place, sizes: Place, channels_in: int, channels_out: int, groups: int, window: Any
) -> Iterator[tuple[int, int, int, Place, Place, Place]]:
    """Every (input channel of a group, input channel, output channel, window, kernel cell, cell of x) that meet.

    `shape`, `counts`, `sizes`: spatial sizes of x, of the result and of the kernel, seen from conv.
    """
    rank = len(sizes)
    stride, padding, dilation = (_each(window.get(key, 1 if key != "padding" else 0), rank) for key in _WINDOW)
    for o in range(channels_out):
        group = o // (channels_out // groups)
        for c in range(channels_in // groups):
            for i in np.ndindex(counts):
                for j in np.ndindex(sizes):
                    cell = tuple(i[a] * stride[a] + j[a] * dilation[a] - padding[a] for a in range(rank))
                    if all(0 <= n < size for n, size in zip(cell, shape)):
                        yield c, group * (channels_in // groups) + c, o, i, j, cell


_WINDOW = ("stride", "padding", "dilation")


def _counts(shape: Place, sizes: Place, window: Any) -> Place:
    rank = len(sizes)
    stride, padding, dilation = (_each(window.get(key, 1 if key != "padding" else 0), rank) for key in _WINDOW)
    return tuple(
        int(np.floor((n + 2 * p - d * (k - 1) - 1) / s)) + 1
        for n, k, s, p, d in zip(shape, sizes, stride, padding, dilation)
    )


def _batched(reference: Callable[..., Any]) -> Callable[..., Any]:
    """A reference for (N, C, *S) applied to (C, *S) too."""

    def apply(kernel: Any, bias: Any, x: Any, **static: Any) -> Any:
        if x.ndim == kernel.ndim:
            return reference(kernel, bias, x, **static)
        return reference(kernel, bias, x[None], **static)[0]

    return apply


@_batched
def _conv(kernel: Any, bias: Any, x: Any, groups: int = 1, **window: Any) -> Any:
    sizes, shape = kernel.shape[2:], x.shape[2:]
    counts = _counts(shape, sizes, window)
    out = np.zeros((x.shape[0], kernel.shape[0], *counts))
    for c, channel, o, i, j, cell in _products(shape, counts, sizes, x.shape[1], kernel.shape[0], groups, window):
        out[(slice(None), o, *i)] += kernel[(o, c, *j)] * x[(slice(None), channel, *cell)]
    return out if bias is None else out + bias.reshape(-1, *(1,) * len(sizes))


@_batched
def _conv_transpose(kernel: Any, bias: Any, x: Any, groups: int = 1, output_padding: Any = 0, **window: Any) -> Any:
    sizes, counts = kernel.shape[2:], x.shape[2:]
    rank = len(sizes)
    stride, padding, dilation = (_each(window.get(key, 1 if key != "padding" else 0), rank) for key in _WINDOW)
    extra = _each(output_padding, rank)
    shape = tuple(
        (counts[a] - 1) * stride[a] - 2 * padding[a] + dilation[a] * (sizes[a] - 1) + extra[a] + 1 for a in range(rank)
    )
    channels = kernel.shape[1] * groups
    out = np.zeros((x.shape[0], channels, *shape))
    for c, channel, o, i, j, cell in _products(shape, counts, sizes, channels, kernel.shape[0], groups, window):
        out[(slice(None), channel, *cell)] += kernel[(o, c, *j)] * x[(slice(None), o, *i)]
    return out if bias is None else out + bias.reshape(-1, *(1,) * rank)


def _conv_kernel_grad(x: Any, g: Any, kernel: Place, groups: int = 1, **window: Any) -> Any:
    if x.ndim == len(kernel) + 1:
        x, g = x[None], g[None]
    out = np.zeros((g.shape[1], x.shape[1] // groups, *kernel))
    for c, channel, o, i, j, cell in _products(
        x.shape[2:], g.shape[2:], kernel, x.shape[1], g.shape[1], groups, window
    ):
        out[(o, c, *j)] += np.sum(g[(slice(None), o, *i)] * x[(slice(None), channel, *cell)])
    return out


def _no_bias(kernel: Place, x: Place) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    return lambda rng: (rng.standard_normal(kernel), None, rng.standard_normal(x))


def _conv_case(case: str, kernel: Place, x: Place, *, bias: bool = True, **static: Any) -> Sample:
    arrays = normal(kernel, (kernel[0],), x) if bias else _no_bias(kernel, x)
    return Sample("conv", case, arrays, _conv, static)


def _transpose_case(case: str, kernel: Place, x: Place, *, bias: bool = True, **static: Any) -> Sample:
    channels = kernel[1] * static.get("groups", 1)
    arrays = normal(kernel, (channels,), x) if bias else _no_bias(kernel, x)
    return Sample("conv_transpose", case, arrays, _conv_transpose, static)


def _kernel_grad_case(case: str, x: Place, g: Place, **static: Any) -> Sample:
    return Sample("conv_kernel_grad", case, normal(x, g), _conv_kernel_grad, static)


SAMPLES: list[Sample] = [
    _conv_case("1d", (2, 2, 3), (2, 2, 5)),
    _conv_case("1d-one-signal", (2, 2, 3), (2, 5)),
    _conv_case("1d-without-bias", (2, 1, 2), (2, 1, 4), bias=False),
    _conv_case("2d", (2, 2, 3, 2), (1, 2, 4, 3)),
    _conv_case("2d-one-image", (2, 1, 2, 2), (1, 3, 3)),
    _conv_case("2d-padding", (2, 1, 3, 3), (2, 1, 3, 3), padding=1),
    _conv_case("2d-stride-leaves-cells", (2, 1, 2, 2), (1, 1, 6, 5), stride=(3, 2)),
    _conv_case("2d-dilation", (1, 2, 2, 2), (1, 2, 4, 5), dilation=(2, 3)),
    _conv_case("2d-all-at-once", (2, 1, 2, 3), (1, 2, 5, 6), stride=(2, 3), padding=(1, 2), dilation=(2, 1), groups=2),
    _conv_case("2d-depthwise", (4, 1, 2, 2), (1, 2, 3, 3), groups=2, padding=1),
    _conv_case("2d-pointwise", (3, 2, 1, 1), (2, 2, 2, 2)),
    _conv_case("2d-more-padding-than-kernel", (1, 1, 1, 2), (1, 1, 2, 2), padding=2),
    _conv_case("2d-whole-image", (2, 2, 2, 3), (2, 2, 2, 3)),
    _conv_case("3d", (1, 2, 2, 1, 2), (1, 2, 2, 2, 3)),
    _conv_case("3d-stride", (2, 1, 2, 2, 1), (1, 1, 3, 2, 3), stride=(1, 1, 2), padding=(0, 1, 0)),
    _conv_case("4d", (1, 1, 2, 1, 1, 2), (1, 1, 2, 2, 1, 2)),
    _conv_case("empty-batch", (2, 1, 2, 2), (0, 1, 3, 3)),
    _conv_case("padding-alone", (1, 1, 2), (1, 1, 0), padding=1),
    Sample("conv", "exact", halves((2, 1, 2, 2), (2,), (1, 1, 3, 3)), _conv, padding=1, exact=True),
    Sample("conv2d", "padding", normal((2, 1, 3, 3), (2,), (1, 1, 4, 3)), _conv, padding=(1, 0), stride=2),
    _transpose_case("1d", (2, 2, 3), (2, 2, 3)),
    _transpose_case("1d-one-signal", (2, 2, 3), (2, 3)),
    _transpose_case("1d-without-bias", (1, 2, 2), (2, 1, 3), bias=False),
    _transpose_case("1d-many-channels", (5, 1, 2), (1, 5, 3)),
    _transpose_case("2d", (2, 1, 2, 3), (1, 2, 3, 2)),
    _transpose_case("2d-one-image", (2, 1, 2, 2), (2, 2, 2)),
    _transpose_case("2d-padding", (1, 2, 3, 3), (1, 1, 3, 2), padding=(1, 0)),
    _transpose_case("2d-more-padding-than-kernel", (1, 1, 1, 2), (1, 1, 6, 5), padding=2),
    _transpose_case("2d-stride", (2, 2, 2, 2), (1, 2, 2, 2), stride=(3, 2), output_padding=(2, 1)),
    _transpose_case("2d-dilation", (2, 1, 2, 2), (1, 2, 2, 2), dilation=(1, 3), padding=(0, 1)),
    _transpose_case(
        "2d-output-padding-below-dilation-alone", (2, 1, 2, 2), (1, 2, 2, 2), dilation=3, output_padding=(2, 1)
    ),
    _transpose_case(
        "2d-all-at-once",
        (2, 2, 2, 3),
        (1, 2, 3, 2),
        stride=(2, 1),
        padding=(1, 2),
        output_padding=(1, 0),
        dilation=(1, 2),
        groups=2,
    ),
    _transpose_case("3d", (1, 1, 2, 1, 2), (1, 1, 2, 2, 2), stride=(1, 2, 1)),
    _transpose_case("empty-batch", (1, 2, 2, 2), (0, 1, 3, 3)),
    _transpose_case("padding-takes-all", (1, 1, 2), (1, 1, 1), padding=1),
    Sample(
        "conv_transpose",
        "exact",
        halves((1, 2, 2, 2), (2,), (1, 1, 2, 2)),
        _conv_transpose,
        stride=2,
        output_padding=1,
        exact=True,
    ),
    Sample("conv_transpose", "exact-by-correlation", halves((1, 2, 2), (2,), (1, 1, 3)), _conv_transpose, exact=True),
    Sample("conv_transpose2d", "stride", normal((1, 2, 2, 2), (2,), (2, 1, 2, 2)), _conv_transpose, stride=2),
    _kernel_grad_case("1d", (2, 2, 4), (2, 3, 3), kernel=(2,)),
    _kernel_grad_case("1d-one-signal", (2, 4), (3, 3), kernel=(2,)),
    _kernel_grad_case("2d", (2, 1, 3, 4), (2, 2, 2, 2), kernel=(2, 3)),
    _kernel_grad_case(
        "2d-all-at-once",
        (1, 2, 5, 6),
        (1, 2, 3, 3),
        kernel=(2, 3),
        stride=(2, 3),
        padding=(1, 2),
        dilation=(2, 1),
        groups=2,
    ),
    _kernel_grad_case("3d", (1, 1, 2, 2, 3), (1, 2, 1, 2, 2), kernel=(2, 1, 2)),
    _kernel_grad_case("empty-batch", (0, 2, 3, 3), (0, 1, 2, 2), kernel=(2, 2)),
    Sample("conv_kernel_grad", "exact", halves((2, 1, 3), (2, 2, 2)), _conv_kernel_grad, kernel=(2,), exact=True),
]


def _bad(op: str, case: str, shapes: tuple[Place, ...], message: str, **static: Any) -> BadCall:
    return BadCall(op, case, zeros(*shapes), message, static)


_IMAGES = ((2, 1, 3, 3), (2,), (1, 1, 5, 5))

BAD_CALLS: list[BadCall] = [
    _bad(
        "conv",
        "kernel-larger-than-x",
        ((1, 1, 3), (1,), (1, 1, 2)),
        r"covers 3 cells along spatial axis 0 of .* but there are 2; use a smaller",
    ),
    _bad(
        "conv",
        "dilated-kernel-larger-than-x",
        _IMAGES,
        r"covers 9 cells.*size 3, dilation 4.*7 in all",
        padding=1,
        dilation=4,
    ),
    _bad("conv", "channels", ((2, 3, 3, 3), (2,), (1, 1, 5, 5)), r"with 1 channel but kernel .* takes 3"),
    _bad("conv", "channels-of-groups", ((2, 3, 3), (2,), (1, 3, 5)), r"groups=2 takes 6", groups=2),
    _bad(
        "conv", "groups-and-outputs", ((3, 1, 3), (3,), (1, 2, 5)), r"groups=2 does not divide the 3 output", groups=2
    ),
    _bad("conv", "no-groups", _IMAGES, r"groups must be an int that is at least 1", groups=0),
    _bad(
        "conv", "rank-of-x", ((2, 1, 3, 3), (2,), (5, 5)), r"x must be \(inC, \*S\) or \(N, inC, \*S\) with 2 spatial"
    ),
    _bad("conv", "no-spatial-axis", ((2, 1), (2,), (1, 1)), r"at least one spatial axis"),
    _bad("conv", "bias", ((2, 1, 3), (3,), (1, 1, 5)), r"bias is \(3,\) but there are 2 output channels"),
    _bad("conv", "stride-of-0", _IMAGES, r"stride must be ints that are at least 1", stride=0),
    _bad("conv", "negative-padding", _IMAGES, r"padding must be ints that are at least 0", padding=-1),
    _bad(
        "conv", "strides-for-another-rank", _IMAGES, r"stride has 3 entries but there are 2 spatial", stride=(1, 1, 1)
    ),
    _bad("conv", "empty-kernel", ((2, 1, 0), (2,), (1, 1, 5)), r"kernel is empty: it has size 0 along spatial axis 0"),
    BadCall(
        "conv",
        "dtypes",
        given(np.zeros((1, 1, 2)), np.zeros(1), np.zeros((1, 1, 3), int)),
        r"kernel is float32 but x is int64",
    ),
    _bad("conv2d", "kernel-rank", ((2, 1, 3), (2,), (1, 1, 5)), r"conv2d.*kernel must have rank 4.*conv takes any"),
    _bad("conv2d", "rank-of-x", ((2, 1, 3, 3), (2,), (5, 5)), r"conv2d.*x must be \(C, H, W\) or \(N, C, H, W\)"),
    _bad("conv_transpose", "channels", ((2, 1, 3), (1,), (1, 1, 5)), r"with 1 channel but kernel .* takes 2"),
    _bad("conv_transpose", "bias", ((1, 2, 3), (1,), (1, 1, 5)), r"bias is \(1,\) but there are 2 output channels"),
    _bad("conv_transpose", "groups", ((3, 1, 3), (2,), (1, 3, 5)), r"groups=2 does not divide the 3 input", groups=2),
    _bad(
        "conv_transpose",
        "output-padding-of-the-stride",
        ((1, 2, 3), (2,), (1, 1, 5)),
        r"output_padding is 2 along spatial axis 0; it must be smaller than the stride 2 or the dilation 1",
        stride=2,
        output_padding=2,
    ),
    _bad(
        "conv_transpose",
        "negative-output-padding",
        ((1, 2, 3), (2,), (1, 1, 5)),
        r"output_padding must be ints that are at least 0",
        output_padding=-1,
    ),
    _bad("conv_transpose", "padding", ((1, 1, 2), (1,), (1, 1, 1)), r"takes 4 cells away .* only 2", padding=2),
    _bad("conv_transpose", "empty-x", ((1, 1, 2), (1,), (1, 1, 0)), r"must have a cell along spatial axis 0"),
    _bad("conv_transpose2d", "kernel-rank", ((2, 1, 3), (1,), (1, 2, 5)), r"conv_transpose2d.*kernel must have rank 4"),
    _bad("conv_kernel_grad", "windows", ((1, 1, 5), (1, 2, 4)), r"axis 2 has 4 instead of 3", kernel=(3,)),
    _bad("conv_kernel_grad", "batch", ((2, 1, 5), (1, 2, 3)), r"axis 0 has 1 instead of 2", kernel=(3,)),
    _bad(
        "conv_kernel_grad",
        "rank-of-g",
        ((1, 1, 5), (2, 3)),
        r"g is \(2, 3\) of rank 2 but the windows make it \(1, 2, 3\)",
        kernel=(3,),
    ),
    _bad("conv_kernel_grad", "no-kernel", ((1, 1), (1, 2)), r"kernel is \(\)", kernel=()),
]
