"""Pool steps for convolutions, from sizes and addresses: their workspace and division.

Bits do not depend on the number of workers: sizes alone decide into which parts a sum is divided, and on which
matrices the BLAS works.
"""

from __future__ import annotations

import math
from functools import lru_cache

from ....compiler.native import Kernel, KernelCall, find_blas
from .channel_steps import channel_grad_plan, channel_grad_steps, channel_plan, channel_steps
from .convolution import WORDS, convolution_kernel
from .convolution_choice import Algorithm, Pass, choose_algorithm, flipped
from .depthwise_convolution import (
    depthwise_flags,
    depthwise_grad_plan,
    depthwise_grad_steps,
    depthwise_plan,
    depthwise_step,
)
from .direct_steps import direct_flags, direct_grad_plan, direct_grad_step, direct_panels, direct_plan, direct_steps
from .geometry import IMAGES, ConvGeometry, ConvTiling, Words, in_volume, kernel_words, round_up

_COLUMN_BYTES = 512 << 10  # for the windows of a block; the kernel and the result also fit in a cache of 1 MB
_FEW_WINDOWS = 128  # per image, too few for a matrix product: then a block has more than one image
_FEW_TERMS = 24  # of a sum of the kernel's gradient over an image whose windows need not be copied


_BY_CHANNELS = (Algorithm.CELLS, Algorithm.CHANNELS)


@lru_cache(4096)
def plan_convolution(which: Pass, g: ConvGeometry) -> ConvTiling:
    """Return the workspace, division and arguments of a convolution or derivative with the geometry of conv.

    The adjoint by a conv has zero padding, which the adjoint itself does not have. A weight that is not finite turns
    those zeros into nan, so the adjoint is then recomputed by COL2IM; flags after the packed kernel say where.
    """
    algorithm, back = choose_algorithm(which, g), which is Pass.ADJOINT
    if which is Pass.KERNEL_GRAD:
        if algorithm is Algorithm.DEPTHWISE:
            return depthwise_grad_plan(g)
        if algorithm in _BY_CHANNELS:
            return channel_grad_plan(g, algorithm is Algorithm.CELLS)
        return direct_grad_plan(g) if algorithm is Algorithm.DIRECT else _gemm_grad_plan(g)
    if algorithm in _BY_CHANNELS:
        return channel_plan(g, back, algorithm is Algorithm.CELLS)
    if algorithm is Algorithm.IM2COL:
        return _gemm_plan(g)
    adjoint = _col2im_plan(g)
    if algorithm is Algorithm.COL2IM:
        return adjoint
    if algorithm is Algorithm.FLIPPED:
        flags, offset = _flags(g, algorithm)
        workspace = max(_gemm_plan(_flipped(g)).workspace, adjoint.workspace)
        return adjoint._replace(workspace=workspace, partial=offset + flags * g.itemsize)
    plan = depthwise_plan(g, back) if algorithm is Algorithm.DEPTHWISE else direct_plan(g, back)
    return plan._replace(workspace=max(plan.workspace, adjoint.workspace)) if back else plan


def _flipped(g: ConvGeometry) -> ConvGeometry:
    turned = flipped(g)
    assert turned is not None
    return turned


def _flags(g: ConvGeometry, algorithm: Algorithm) -> tuple[int, int]:
    """Return the number of flags of an adjoint, and their offset: the size in bytes of the packed kernel."""
    if algorithm is Algorithm.DEPTHWISE:
        return depthwise_flags(g), 0
    if algorithm is Algorithm.DIRECT:
        return direct_flags(g, True), direct_panels(g, True)
    if algorithm is Algorithm.COL2IM:
        return 0, 0
    turned = _flipped(g)
    return turned.channels_out, turned.channels_out * turned.depth * turned.itemsize


# Products of matrices -------------------------------------------------------------------------------------------------


@lru_cache(1024)
def _gemm_plan(geometry: ConvGeometry) -> ConvTiling:
    images, lines, pointwise = _blocks(geometry, _FEW_WINDOWS)
    workspace, tile = _workspace(geometry, images, lines, pointwise)
    blocks = -(-geometry.images // images) * -(-math.prod(geometry.counts[:-1]) // lines)
    return ConvTiling(workspace, 0, blocks, _words(geometry, workspace, tile, images, 1, 1, pointwise, lines))


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
def _col2im_plan(geometry: ConvGeometry) -> ConvTiling:
    """Plan the adjoint in x. A task has some channels of an image, so that tasks write disjoint cells."""
    line_bytes = math.prod(geometry.kernel) * geometry.counts[-1] * geometry.itemsize
    all_lines, channels_in = math.prod(geometry.counts[:-1]), geometry.channels_in // geometry.groups
    lines = max(1, min(all_lines, _COLUMN_BYTES // max(1, line_bytes)))
    channels = max(1, min(channels_in, _COLUMN_BYTES // max(1, line_bytes * lines)))
    if geometry.images * geometry.groups < IMAGES:
        channels = min(channels, max(1, -(-channels_in // IMAGES)))
    workspace = round_up(line_bytes * lines * channels)
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
    """Return whether windows are the cells."""
    return max(geometry.kernel) == 1 and max(geometry.stride) == 1 and not any(geometry.padding)


def _workspace(geometry: ConvGeometry, images: int, lines: int, pointwise: bool) -> tuple[int, int]:
    """Return the bytes per worker, and the offset of the tile, after the windows."""
    length = images * lines * geometry.counts[-1] * geometry.itemsize
    columns = 0 if pointwise else round_up(geometry.depth * length)
    tile = round_up(geometry.channels_out // geometry.groups * length) if images > 1 else 0
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


# Steps ----------------------------------------------------------------------------------------------------------------


def convolution_steps(
    which: Pass, g: ConvGeometry, x: int, other: int, bias: int, out: int, workspace: int, partial: int
) -> tuple[KernelCall, ...]:
    """Return the steps of a convolution or derivative at `out`, from addresses; bias is 0 if there is none.

    `x` is the operand with images, and `other` the kernel or, for its gradient, the cotangent. `workspace` has
    plan_convolution(which, g).workspace bytes per worker, and `partial` has .partial bytes in total.
    """
    if which is Pass.KERNEL_GRAD:
        return _grad_steps(g, x, other, out, workspace, partial)
    algorithm, back = choose_algorithm(which, g), which is Pass.ADJOINT
    at = x, other, bias, out, workspace
    if algorithm in _BY_CHANNELS:
        return channel_steps(g, back, algorithm is Algorithm.CELLS, *at, partial)
    if algorithm is Algorithm.IM2COL:
        return (_gemm_step(g, *at),)
    main: tuple[KernelCall, ...] = ()
    if algorithm is Algorithm.DEPTHWISE:
        main = (depthwise_step(g, *at, partial if back else 0),)
    elif algorithm is Algorithm.DIRECT:
        main = direct_steps(g, *at, partial, back)
    if not back:
        return main
    plan = _col2im_plan(g)
    if algorithm is Algorithm.FLIPPED:
        turn = KernelCall(_kernel("turn", g), g.channels_in, _placed(plan, 0, other, 0, 0, 0, partial))
        main = turn, _gemm_step(_flipped(g), x, partial, bias, out, workspace)
    words = _placed(plan, out, other, x, bias, workspace, partial)
    words[34], words[8] = _flags(g, algorithm)
    return *main, KernelCall(_kernel("col2im", g), plan.tasks, words, parallel=algorithm is Algorithm.COL2IM)


def _gemm_step(g: ConvGeometry, x: int, kernel: int, bias: int, out: int, workspace: int) -> KernelCall:
    plan = _gemm_plan(g)
    return KernelCall(_kernel("conv", g), plan.tasks, _placed(plan, x, kernel, out, bias, workspace, 0))


def _grad_steps(
    g: ConvGeometry, x: int, cotangent: int, out: int, workspace: int, partial: int
) -> tuple[KernelCall, ...]:
    algorithm, at = choose_algorithm(Pass.KERNEL_GRAD, g), (x, cotangent, out, workspace, partial)
    if algorithm is Algorithm.DEPTHWISE:
        return depthwise_grad_steps(g, *at)
    if algorithm in _BY_CHANNELS:
        return channel_grad_steps(g, algorithm is Algorithm.CELLS, *at)
    plan = plan_convolution(Pass.KERNEL_GRAD, g)
    if algorithm is Algorithm.DIRECT:
        main = direct_grad_step(g, *at)
        plan = plan._replace(words=_words(g, 0, 0, 1, 1, plan.tasks, False, 1))
    words = _placed(plan, x, cotangent, out, 0, workspace, partial)
    if algorithm is Algorithm.IM2COL:
        main = KernelCall(_kernel("conv_kernel_grad", g), plan.tasks, words)
    return (main,) if plan.tasks == 1 else (main, KernelCall(_kernel("combine", g), g.channels_out, words))


def _kernel(name: str, geometry: ConvGeometry) -> Kernel:
    kernel = convolution_kernel(name, geometry.dtype)
    assert kernel is not None
    return kernel


def _placed(plan: ConvTiling, x: int, second: int, out: int, bias: int, workspace: int, partial: int) -> Words:
    words = plan.words.copy()
    words[1:7] = x, second, out, bias, workspace, partial
    return words
