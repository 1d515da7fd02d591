"""Pool steps for convolutions, from sizes and addresses: their workspace and division.

Bits do not depend on the number of workers: sizes alone decide into which parts a sum is divided, and on which
matrices the BLAS works.
"""

from __future__ import annotations

import math
from functools import lru_cache

from ....compiler.native import Kernel, KernelCall, find_blas
from .channel_steps import (
    channel_grad_plan,
    channel_grad_steps,
    channel_plan,
    channel_steps,
    is_by_channels,
    is_grad_by_channels,
)
from .convolution import WORDS, convolution_kernel
from .depthwise_convolution import (
    depthwise_grad_plan,
    depthwise_grad_steps,
    depthwise_notes,
    depthwise_plan,
    depthwise_step,
    is_depthwise,
)
from .direct_steps import (
    direct_grad_plan,
    direct_grad_step,
    direct_notes,
    direct_panels,
    direct_plan,
    direct_steps,
    is_direct,
    is_grad_direct,
)
from .geometry import IMAGES, ConvGeometry, ConvTiling, Words, in_volume, kernel_words, rounded_up

_COLUMN_BYTES = 512 << 10  # for the windows of a block; the kernel and the result also fit in a cache of 1 MB
_FEW_WINDOWS = 128  # per image, too few for a matrix product: then a block has more than one image
_FEW_TERMS = 24  # of a sum of the kernel's gradient over an image whose windows need not be copied
_RANK = 3


def supported(geometry: ConvGeometry) -> bool:
    """Whether there are kernels for it."""
    return 1 <= len(geometry.cells) <= _RANK and geometry.dtype in ("float32", "float64") and find_blas() is not None


@lru_cache(1024)
def conv_plan(geometry: ConvGeometry) -> ConvTiling:
    if is_depthwise(geometry):
        return depthwise_plan(geometry)
    if is_by_channels(geometry):
        return channel_plan(geometry)
    return direct_plan(geometry) if is_direct(geometry) else _gemm_plan(geometry)


@lru_cache(1024)
def _gemm_plan(geometry: ConvGeometry) -> ConvTiling:
    images, lines, pointwise = _blocks(geometry, _FEW_WINDOWS)
    workspace, tile = _workspace(geometry, images, lines, pointwise)
    blocks = -(-geometry.images // images) * -(-math.prod(geometry.counts[:-1]) // lines)
    return ConvTiling(workspace, 0, blocks, _words(geometry, workspace, tile, images, 1, 1, pointwise, lines))


def conv_kernel_grad_plan(geometry: ConvGeometry) -> ConvTiling:
    if is_depthwise(geometry):
        return depthwise_grad_plan(geometry)
    if is_grad_by_channels(geometry):
        return channel_grad_plan(geometry)
    return direct_grad_plan(geometry) if is_grad_direct(geometry) else _gemm_grad_plan(geometry)


@lru_cache(1024)
def _gemm_grad_plan(geometry: ConvGeometry) -> ConvTiling:
    images, lines, pointwise = _blocks(geometry, _FEW_TERMS if _is_pointwise(geometry) else _FEW_WINDOWS)
    workspace, tile = _workspace(geometry, images, lines, pointwise)
    blocks = -(-geometry.images // images) * -(-math.prod(geometry.counts[:-1]) // lines)
    parts = geometry.grad_parts(blocks)
    kernel_bytes = geometry.channels_out * geometry.depth * geometry.itemsize
    words = _words(geometry, workspace, tile, images, 1, parts, pointwise, lines)
    return ConvTiling(workspace, (parts - 1) * kernel_bytes, parts, words)


@lru_cache(1024)
def col2im_plan(geometry: ConvGeometry) -> ConvTiling:
    """Plan the adjoint in x. A task has some channels of an image, so that tasks write disjoint cells."""
    line_bytes = math.prod(geometry.kernel) * geometry.counts[-1] * geometry.itemsize
    all_lines, channels_in = math.prod(geometry.counts[:-1]), geometry.channels_in // geometry.groups
    lines = max(1, min(all_lines, _COLUMN_BYTES // max(1, line_bytes)))
    channels = max(1, min(channels_in, _COLUMN_BYTES // max(1, line_bytes * lines)))
    if geometry.images * geometry.groups < IMAGES:
        channels = min(channels, max(1, -(-channels_in // IMAGES)))
    workspace = rounded_up(line_bytes * lines * channels)
    tasks = geometry.images * geometry.groups * -(-channels_in // channels)
    return ConvTiling(workspace, 0, tasks, _words(geometry, workspace, 0, 1, channels, 1, False, lines))


def _blocks(geometry: ConvGeometry, few: int) -> tuple[int, int, bool]:
    """Return the images and lines of windows per block, and whether the planes of an image already are the matrix of
    windows: more than one image only if all its lines fit and its windows are fewer than `few`."""
    line_bytes = max(1, geometry.depth * geometry.counts[-1] * geometry.itemsize)
    all_lines = max(1, math.prod(geometry.counts[:-1]))
    lines = max(1, min(all_lines, _COLUMN_BYTES // line_bytes))
    images = 1
    if all_lines * geometry.counts[-1] < few:
        images = max(1, min(-(-geometry.images // IMAGES), _COLUMN_BYTES // (line_bytes * all_lines)))
    if geometry.images < IMAGES:
        lines = min(lines, -(-all_lines // IMAGES))
    return images, lines, images == 1 and _is_pointwise(geometry)


def _is_pointwise(geometry: ConvGeometry) -> bool:
    """Whether windows are the cells."""
    return max(geometry.kernel) == 1 and max(geometry.stride) == 1 and not any(geometry.padding)


def _workspace(geometry: ConvGeometry, images: int, lines: int, pointwise: bool) -> tuple[int, int]:
    """Return the bytes per worker, and the offset of the tile, after the windows."""
    length = images * lines * geometry.counts[-1] * geometry.itemsize
    columns = 0 if pointwise else rounded_up(geometry.depth * length)
    tile = rounded_up(geometry.channels_out // geometry.groups * length) if images > 1 else 0
    return columns + tile, columns


def _words(
    geometry: ConvGeometry,
    workspace: int,
    tile: int,
    images: int,
    channels: int,
    parts: int,
    pointwise: bool,
    lines: int,
) -> Words:
    g = geometry

    blas = find_blas()
    assert blas is not None
    return kernel_words(
        [
            blas.sgemm if g.dtype == "float32" else blas.dgemm, *(0,) * 6,
            workspace, tile, images, channels, parts,
            g.images, g.groups, g.channels_in // g.groups, g.channels_out // g.groups,
            *in_volume(g.cells, 1), *in_volume(g.kernel, 1), *in_volume(g.counts, 1), *in_volume(g.stride, 1),
            *in_volume(g.padding, 0), *in_volume(g.dilation, 1), pointwise, lines,
        ],
        WORDS,
    )  # fmt: skip


# Steps ---------------------------------------------------------------------------------------------------------------


def conv_steps(
    geometry: ConvGeometry, x: int, kernel: int, bias: int, out: int, workspace: int, partial: int
) -> tuple[KernelCall, ...]:
    """Return the steps of conv(kernel, bias, x) at `out`, from addresses; bias is 0 if there is none.

    `workspace` has conv_plan(geometry).workspace bytes per worker, and `partial` has .partial bytes in total.
    """
    if is_depthwise(geometry):
        return (depthwise_step(geometry, x, kernel, bias, out, workspace),)
    if is_by_channels(geometry):
        return channel_steps(geometry, x, kernel, bias, out, workspace, partial)
    if is_direct(geometry):
        return direct_steps(geometry, x, kernel, bias, out, workspace, partial)
    return _gemm_steps(geometry, x, kernel, bias, out, workspace)


def _gemm_steps(g: ConvGeometry, x: int, kernel: int, bias: int, out: int, workspace: int) -> tuple[KernelCall, ...]:
    plan = _gemm_plan(g)
    return (KernelCall(_kernel("conv", g), plan.tasks, _placed(plan, x, kernel, out, bias, workspace, 0)),)


def conv_kernel_grad_steps(
    geometry: ConvGeometry, x: int, cotangent: int, out: int, workspace: int, partial: int
) -> tuple[KernelCall, ...]:
    """Return the steps of conv_kernel_grad(x, cotangent) at `out`."""
    if is_depthwise(geometry):
        return depthwise_grad_steps(geometry, x, cotangent, out, workspace, partial)
    if is_grad_by_channels(geometry):
        return channel_grad_steps(geometry, x, cotangent, out, workspace, partial)
    plan = conv_kernel_grad_plan(geometry)
    if is_grad_direct(geometry):
        main = direct_grad_step(geometry, x, cotangent, out, workspace, partial)
        plan = plan._replace(words=_words(geometry, 0, 0, 1, 1, plan.tasks, False, 1))
    else:
        words = _placed(plan, x, cotangent, out, 0, workspace, partial)
        main = KernelCall(_kernel("conv_kernel_grad", geometry), plan.tasks, words)
    if plan.tasks == 1:
        return (main,)
    words = _placed(plan, x, cotangent, out, 0, workspace, partial)
    return main, KernelCall(_kernel("combine", geometry), geometry.channels_out, words)


def conv_transpose_plan(geometry: ConvGeometry) -> ConvTiling:
    """Plan conv's adjoint in x, as a conv with the flipped kernel if that is faster.

    That conv has zero padding, which the adjoint does not have. A weight that is not finite turns those zeros into nan,
    so the adjoint is then recomputed; flags after the flipped kernel say where.
    """
    if is_by_channels(geometry, True):
        return channel_plan(geometry, True)
    adjoint = col2im_plan(geometry)
    if is_depthwise(geometry):
        plan = depthwise_plan(geometry, True)
        return plan._replace(workspace=max(plan.workspace, adjoint.workspace))
    if is_direct(geometry, True):
        plan = direct_plan(geometry, True)
        return plan._replace(workspace=max(plan.workspace, adjoint.workspace))
    turned = _turned(geometry)
    if turned is None:
        return adjoint
    notes, offset = _notes(turned)
    workspace = max(_gemm_plan(turned).workspace, adjoint.workspace)
    return adjoint._replace(workspace=workspace, partial=offset + notes * geometry.itemsize)


def _notes(turned: ConvGeometry) -> tuple[int, int]:
    """Return the number of flags of a flipped kernel, and the kernel's size in bytes, which is their offset."""
    return turned.channels_out, turned.channels_out * turned.depth * turned.itemsize


def conv_transpose_steps(
    geometry: ConvGeometry, x: int, kernel: int, bias: int, out: int, workspace: int, partial: int
) -> tuple[KernelCall, ...]:
    """Return the steps of conv_transpose(kernel, bias, x) at `out`; `geometry` is that of the conv whose adjoint it
    is."""
    if is_by_channels(geometry, True):
        return channel_steps(geometry, x, kernel, bias, out, workspace, partial, back=True)
    plan = col2im_plan(geometry)
    again = _placed(plan, out, kernel, x, bias, workspace, partial)
    mend = KernelCall(_kernel("col2im", geometry), plan.tasks, again, parallel=False)
    if is_depthwise(geometry):
        again[34], again[8] = depthwise_notes(geometry), 0
        return depthwise_step(geometry, x, kernel, bias, out, workspace, partial), mend
    if is_direct(geometry, True):
        again[34], again[8] = direct_notes(geometry, True), direct_panels(geometry, True)
        return *direct_steps(geometry, x, kernel, bias, out, workspace, partial, back=True), mend
    turned = _turned(geometry)
    if turned is None:
        return (mend._replace(parallel=True),)
    again[34], again[8] = _notes(turned)
    words = _placed(plan, 0, kernel, 0, 0, 0, partial)
    return (
        KernelCall(_kernel("turn", geometry), geometry.channels_in, words),
        *_gemm_steps(turned, x, partial, bias, out, workspace),
        mend,
    )


@lru_cache(1024)
def _turned(geometry: ConvGeometry) -> ConvGeometry | None:
    """Return the conv that is the adjoint in x, if there is one without many more products."""
    g = geometry
    border = tuple(d * (k - 1) - p for k, p, d in zip(g.kernel, g.padding, g.dilation))
    reached = tuple(n + 2 * p - d * (k - 1) for n, k, p, d in zip(g.cells, g.kernel, g.padding, g.dilation))
    if max(g.stride) > 1 or min(border) < 0 or reached != g.counts or g.channels_out > 2 * g.channels_in:
        return None
    return g._replace(
        channels_in=g.channels_out, channels_out=g.channels_in, cells=g.counts, counts=g.cells, padding=border
    )


def _kernel(name: str, geometry: ConvGeometry) -> Kernel:
    kernel = convolution_kernel(name, geometry.dtype)
    assert kernel is not None
    return kernel


def _placed(plan: ConvTiling, x: int, second: int, out: int, bias: int, workspace: int, partial: int) -> Words:
    words = plan.words.copy()
    words[1:7] = x, second, out, bias, workspace, partial
    return words
