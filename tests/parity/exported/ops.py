"""ATen's ops, each as a function of tensors, in families of which one program is exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

Function = Callable[..., Any]


def _x(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64) * (high - low) + low


def _i(*shape: int, seed: int = 0, low: int = 0, high: int = 3) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


X, Y, POSITIVE, UNIT = _x(3, 4), _x(3, 4, seed=1), _x(3, 4, seed=2, low=0.2), _x(3, 4, seed=3, low=-0.9, high=0.9)
IMAGE, VOLUME, LINE = _x(2, 4, 6, 5), _x(2, 2, 4, 4, 4), _x(2, 4, 9)
INT, MASK, INDEX = _i(3, 4, low=-5, high=6), _x(3, 4, seed=5) > 0, _i(5, high=3)
SQUARE = _x(4, 4) @ _x(4, 4).T + 4 * torch.eye(4, dtype=torch.float64)

_ONE = """abs ceil cos cosh deg2rad erf exp exp2 expm1 floor frac neg relu round sigmoid sign sin sinc sinh square
tan tanh trunc asinh atan positive"""
_ABOVE = "log log10 log1p log2 rsqrt sqrt reciprocal lgamma digamma"
_WITHIN = "acos asin atanh erfinv"
_F = """celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 selu silu softplus
softshrink softsign tanhshrink"""

Table = dict[str, tuple[Function, tuple[torch.Tensor, ...]]]

POINTWISE: Table = {name: (getattr(torch, name), (X,)) for name in _ONE.split()}
POINTWISE |= {name: (getattr(torch, name), (POSITIVE,)) for name in _ABOVE.split() if "gamma" not in name}
POINTWISE |= {name: (getattr(torch, name), (UNIT,)) for name in _WITHIN.split() if name != "erfinv"}
POINTWISE |= {name: (getattr(F, name), (X,)) for name in _F.split()}
POINTWISE |= {
    "acosh": (torch.acosh, (POSITIVE + 1,)),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), (X,)),
    "softplus_beta": (lambda x: F.softplus(x, beta=2.0, threshold=1.0), (X,)),
    "elu_alpha": (lambda x: F.elu(x, alpha=0.5), (X,)),
    "threshold": (lambda x: F.threshold(x, 0.3, -1.0), (X,)),
    "prelu": (F.prelu, (X, _x(4, seed=7))),
    "prelu_single": (F.prelu, (X, _x(1, seed=7))),
    "glu": (lambda x: F.glu(x, 1), (X,)),
    "clamp": (lambda x: x.clamp(-0.5, 0.7), (X,)),
    "clamp_low": (lambda x: x.clamp(min=-0.5), (X,)),
    "clamp_high": (lambda x: x.clamp(max=0.5), (X,)),
    "clamp_tensor": (lambda x, y: torch.clamp(x, min=y), (X, Y)),
    "round_decimals": (lambda x: torch.round(x, decimals=1), (X,)),
    "nan_to_num": (lambda x: torch.nan_to_num(x / (x > 0), 7.0, 8.0, 9.0), (X,)),
    "logit": (lambda x: torch.logit(x, 0.1), (UNIT.abs(),)),
    "add": (lambda x, y: x + y, (X, Y)),
    "add_alpha": (lambda x, y: torch.add(x, y, alpha=0.5), (X, Y)),
    "add_number": (lambda x: x + 3, (X,)),
    "add_spread": (lambda x, y: x + y, (X, _x(4, seed=2))),
    "sub_alpha": (lambda x, y: torch.sub(x, y, alpha=2), (X, Y)),
    "rsub": (lambda x: 1 - x, (X,)),
    "mul": (lambda x, y: x * y, (X, Y)),
    "mul_number": (lambda x: x * 2.5, (X,)),
    "div": (lambda x, y: x / y, (X, POSITIVE)),
    "div_number": (lambda x: x / 3, (X,)),
    "div_floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (X, POSITIVE)),
    "div_trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (X, POSITIVE)),
    "remainder": (torch.remainder, (X, POSITIVE)),
    "fmod": (torch.fmod, (X, POSITIVE)),
    "pow": (lambda x: x**3, (X,)),
    "pow_half": (lambda x: x**0.5, (POSITIVE,)),
    "pow_tensor": (torch.pow, (POSITIVE, Y)),
    "pow_of_number": (lambda x: 2.0**x, (X,)),
    "maximum": (torch.maximum, (X, Y)),
    "minimum": (torch.minimum, (X, Y)),
    "atan2": (torch.atan2, (X, Y)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (X, Y)),
    "addcmul": (lambda x, y: torch.addcmul(x, y, y, value=0.5), (X, Y)),
    "addcdiv": (lambda x, y: torch.addcdiv(x, x, y, value=0.5), (X, POSITIVE)),
    "where": (lambda x, y: torch.where(x > y, x, y), (X, Y)),
    "where_number": (lambda x: torch.where(x > 0, x, 0.5), (X,)),
    "masked_fill": (lambda x: x.masked_fill(x > 0.5, -1.0), (X,)),
    "logaddexp": (torch.logaddexp, (X, Y)),
    "xlogy": (torch.xlogy, (X, POSITIVE)),
}

INTEGERS: Table = {
    "add": (lambda i: i + i, (INT,)),
    "mixed": (lambda i, x: i + x, (INT, X)),
    "mixed_number": (lambda i: i * 0.5, (INT,)),
    "true_div": (lambda i: i / 4, (INT,)),
    "floor_div": (lambda i: i // 3, (INT,)),
    "trunc_div": (lambda i: torch.div(i, 3, rounding_mode="trunc"), (INT,)),
    "remainder": (lambda i: i % 3, (INT,)),
    "fmod": (lambda i: torch.fmod(i, 3), (INT,)),
    "pow": (lambda i: i**3, (INT,)),
    "abs": (torch.abs, (INT,)),
    "clamp": (lambda i: i.clamp(-2, 3), (INT,)),
    "bits": (lambda i: (i & 3) | (i ^ 5), (INT,)),
    "shift": (lambda i: (i << 2) >> 1, (INT,)),
    "bit_not": (lambda i: ~i, (INT,)),
    "int8_wraps": (lambda i: (i * 40).to(torch.int8) + i.to(torch.int8), (INT,)),
    "uint8_wraps": (lambda i: i.to(torch.uint8) - 1, (INT.abs(),)),
    "int32": (lambda i: i.to(torch.int32) * 2, (INT,)),
    "to_float": (lambda i: i.double().sqrt(), (INT.abs(),)),
    "to_int": (lambda x: x.long(), (X,)),
    "sum": (lambda i: i.sum(1), (INT,)),
    "sum_bool": (lambda m: m.sum(), (MASK,)),
    "max": (lambda i: i.max(1).values, (INT,)),
    "compare": (lambda i: i > 0.5, (INT,)),
    "compare_bool": (lambda m: m > ~m, (MASK,)),
    "eq": (lambda i, j: i == j, (INT, INT.T.contiguous().view(3, 4))),
    "ne": (lambda i: i != 2, (INT,)),
    "le": (lambda x, y: x <= y, (X, Y)),
    "ge": (lambda x, y: x >= y, (X, Y)),
    "logical_and": (lambda x, m: torch.logical_and(x > 0, m), (X, MASK)),
    "logical_of_ints": (torch.logical_or, (INT, INT.flip(0))),
    "logical_xor": (lambda m: m ^ m.flip(0), (MASK,)),
    "logical_not": (torch.logical_not, (INT,)),
    "add_bools": (lambda m: m + m.flip(0), (MASK,)),
    "mul_bools": (lambda m: m * m.flip(0), (MASK,)),
    "isnan": (lambda x: torch.isnan(torch.log(x)), (X,)),
    "isinf": (lambda x: torch.isinf(x / 0.0), (X,)),
    "isfinite": (lambda i: torch.isfinite(i), (INT,)),
    "argmax": (lambda x: x.argmax(1), (X,)),
    "argmax_all": (lambda x: x.argmax(), (X,)),
    "argmin": (lambda x: x.argmin(0, keepdim=True), (X,)),
    "argsort": (lambda x: x.argsort(1, descending=True), (X,)),
    "any": (lambda m: m.any(1), (MASK,)),
    "all": (lambda i: i.all(), (INT,)),
    "one_hot": (lambda i: F.one_hot(i, 4), (INDEX,)),
    "arange": (lambda x: torch.arange(x.shape[0]), (X,)),
    "arange_step": (lambda x: torch.arange(1, 10, 3), (X,)),
    "cumsum": (lambda i: i.cumsum(1), (INT,)),
    "bucketize": (lambda x: torch.tril(x > 0), (X,)),
    "searched": (lambda i: i.flip(1).roll(1, 0), (INT,)),
}

REDUCTIONS: Table = {
    "sum": (lambda x: x.sum(), (X,)),
    "sum_axis": (lambda x: x.sum(1, keepdim=True), (X,)),
    "mean": (lambda x: x.mean((0, 2)), (LINE,)),
    "prod": (lambda x: x.prod(1), (X,)),
    "prod_all": (lambda x: x.prod(), (X,)),
    "amax": (lambda x: x.amax((0, 1)), (X,)),
    "amin": (lambda x: x.amin(1), (X,)),
    "max": (lambda x: x.max(), (X,)),
    "max_axis": (lambda x: x.max(1).values, (X,)),
    "min_axis": (lambda x: x.min(0, keepdim=True)[0], (X,)),
    "var": (lambda x: x.var(1), (X,)),
    "var_biased": (lambda x: x.var(1, correction=0), (X,)),
    "std": (lambda x: x.std(), (X,)),
    "var_mean": (lambda x: torch.var_mean(x, 1)[0] + torch.var_mean(x, 1)[1], (X,)),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=1), (X,)),
    "norm_1": (lambda x: x.norm(p=1), (X,)),
    "norm_3": (lambda x: torch.linalg.vector_norm(x, 3, dim=1), (X,)),
    "logsumexp": (lambda x: x.logsumexp(1), (X,)),
    "softmax": (lambda x: x.softmax(1), (X,)),
    "log_softmax": (lambda x: x.log_softmax(0), (X,)),
    "softmin": (lambda x: F.softmin(x, dim=1), (X,)),
    "cumsum": (lambda x: x.cumsum(0), (X,)),
    "cumprod": (lambda x: x.cumprod(1), (X,)),
    "sort": (lambda x: x.sort(1).values, (X,)),
    "sort_down": (lambda x: x.sort(0, descending=True)[0], (X,)),
    "topk": (lambda x: x.topk(2, 1).values, (X,)),
    "median": (lambda x: x.median(1).values, (X,)),
    "normalize": (lambda x: F.normalize(x, dim=1), (X,)),
    "cosine": (lambda x, y: F.cosine_similarity(x, y), (X, Y)),
    "cdist": (lambda x, y: (x.unsqueeze(1) - y.unsqueeze(0)).square().sum(-1), (X, Y)),
    "mse": (F.mse_loss, (X, Y)),
    "l1": (F.l1_loss, (X, Y)),
    "smooth_l1": (F.smooth_l1_loss, (X, Y)),
    "huber": (F.huber_loss, (X, Y)),
    "bce_logits": (lambda x, y: F.binary_cross_entropy_with_logits(x, y), (X, UNIT.abs())),
    "bce": (lambda x, y: F.binary_cross_entropy(x, y), (POSITIVE / 3, UNIT.abs())),
    "kl": (lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"), (X, Y)),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.tensor([1, 0, 3])), (X,)),
    "cross_entropy_ignored": (lambda x: F.cross_entropy(x, torch.tensor([1, -100, 3])), (X,)),
    "cross_entropy_weighted": (
        lambda x: F.cross_entropy(
            x, torch.tensor([1, 0, 3]), weight=torch.arange(1.0, 5.0).double(), label_smoothing=0.1
        ),
        (X,),
    ),
    "nll": (lambda x: F.nll_loss(x.log_softmax(1), torch.tensor([1, 0, 3])), (X,)),
}

LAYOUT: Table = {
    "reshape": (lambda x: x.reshape(2, -1), (X,)),
    "flatten": (lambda x: x.flatten(1), (IMAGE,)),
    "unflatten": (lambda x: x.unflatten(1, (2, 2)), (X,)),
    "permute": (lambda x: x.permute(2, 0, -1, 1), (IMAGE,)),
    "transpose": (lambda x: x.transpose(0, -1), (LINE,)),
    "t": (lambda x: x.t(), (X,)),
    "movedim": (lambda x: x.movedim(0, 2), (LINE,)),
    "unsqueeze": (lambda x: x.unsqueeze(-1).unsqueeze(0), (X,)),
    "squeeze": (lambda x: x.unsqueeze(1).squeeze(), (X,)),
    "squeeze_of_none": (lambda x: x.squeeze(0), (X,)),
    "expand": (lambda x: x.unsqueeze(0).expand(2, -1, 4), (X,)),
    "repeat": (lambda x: x.repeat(2, 1, 3), (X,)),
    "tile": (lambda x: x.tile((2,)), (X,)),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), (X,)),
    "cat": (lambda x, y: torch.cat([x, y], 1), (X, Y)),
    "stack": (lambda x, y: torch.stack([x, y], -1), (X, Y)),
    "split": (lambda x: x.split(3, 1)[1], (X,)),
    "split_sizes": (lambda x: x.split([1, 3], 1)[1], (X,)),
    "chunk": (lambda x: x.chunk(3, 1)[0], (X,)),
    "unbind": (lambda x: x.unbind(1)[2], (X,)),
    "select": (lambda x: x[-1], (X,)),
    "slice": (lambda x: x[:, 1:-1], (X,)),
    "slice_step": (lambda x: x[:, ::2, 1::3], (LINE,)),
    "narrow": (lambda x: x.narrow(1, 1, 2), (X,)),
    "flip": (lambda x: x.flip(0, 1), (X,)),
    "roll": (lambda x: x.roll((1, -2), (0, 1)), (X,)),
    "roll_flat": (lambda x: x.roll(3), (X,)),
    "tril": (lambda x: x.tril(-1), (SQUARE,)),
    "triu": (lambda x: x.triu(1), (SQUARE,)),
    "diagonal": (lambda x: x.diagonal(1), (SQUARE,)),
    "diag_embed": (lambda x: torch.diag_embed(x), (X,)),
    "trace": (torch.trace, (SQUARE,)),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1), value=0.5), (X,)),
    "pad_negative": (lambda x: F.pad(x, (-1, 2)), (X,)),
    "pad_reflect": (lambda x: F.pad(x, (1, 2), mode="reflect"), (LINE,)),
    "pad_replicate": (lambda x: F.pad(x, (1, 2, 3, 0), mode="replicate"), (IMAGE,)),
    "pad_circular": (lambda x: F.pad(x, (1, 2), mode="circular"), (LINE,)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (IMAGE,)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (_x(1, 2, 4, 4),)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), (IMAGE,)),
    "written": (lambda x: _written(x), (X,)),
    "written_column": (lambda x: _written_column(x), (X,)),
    "meshgrid": (lambda x: torch.meshgrid(x[0], x[:, 0], indexing="ij")[1], (X,)),
    "zeros_ones": (lambda x: x + torch.ones(4, dtype=x.dtype) + torch.zeros_like(x) + x.new_full((4,), 2.0), (X,)),
    "linspace": (lambda x: x + torch.linspace(0, 1, 4, dtype=torch.float64), (X,)),
    "eye": (lambda x: x @ torch.eye(4, dtype=torch.float64), (X,)),
    "no_grad": (lambda x: _partly_without_gradient(x), (X,)),
    "detach": (lambda x: x * x.detach(), (X,)),
}

INDEXING: Table = {
    "embedding": (lambda w: F.embedding(torch.tensor([[0, 2], [1, 1]]), w), (X,)),
    "embedding_padded": (lambda w: F.embedding(torch.tensor([0, 2, 1]), w, padding_idx=1), (X,)),
    "index_select": (lambda x: x.index_select(1, torch.tensor([3, 0])), (X,)),
    "gather": (lambda x: x.gather(1, torch.tensor([[0, 3], [1, 1]])), (X,)),
    "scatter": (lambda x, y: x.scatter(1, torch.tensor([[0, 3], [1, 2]]), y), (X, _x(2, 2, seed=1))),
    "scatter_value": (lambda x: x.scatter(0, torch.tensor([[0, 1, 2, 0]]), 5.0), (X,)),
    "scatter_add": (lambda x, y: x.scatter_add(0, torch.tensor([[0, 0, 2, 1]]), y), (X, _x(1, 4, seed=1))),
    "scatter_reduce": (
        lambda x, y: x.scatter_reduce(1, torch.tensor([[0, 1], [1, 2], [3, 0]]), y, "amax"),
        (X, _x(3, 2, seed=1)),
    ),
    "index_add": (lambda x, y: x.index_add(0, torch.tensor([0, 2, 0]), y), (X, Y)),
    "index": (lambda x: x[torch.tensor([0, -1, 1])], (X,)),
    "index_two": (lambda x: x[torch.tensor([0, 2]), torch.tensor([1, -1])], (X,)),
    "index_behind": (lambda x: x[:, torch.tensor([[0, 2], [1, 1]])], (X,)),
    "index_apart": (lambda x: x[torch.tensor([0, 1]), :, torch.tensor([3, 0])], (IMAGE,)),
    "index_middle": (lambda x: x[:, torch.tensor([0, 1]), torch.tensor([3, 0])], (IMAGE,)),
    "index_put": (lambda x, y: x.index_put((torch.tensor([0, 2]),), y[:2]), (X, Y)),
    "index_put_added": (lambda x, y: x.index_put((torch.tensor([0, 0]),), y[:2], accumulate=True), (X, Y)),
    "index_put_mask": (lambda x: x.index_put((x.detach() > 0,), torch.tensor(0.5, dtype=x.dtype)), (X,)),
    "take_along": (lambda x: torch.take_along_dim(x, torch.tensor([[1], [0], [3]]), 1), (X,)),
}


def _products_of_columns(factors: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """x itself times x, from eigenvalues and vectors: the signs of these are any."""
    values, vectors = factors
    return (vectors * values.square().unsqueeze(-2)) @ vectors.mT


def _of_singular_vectors(u: torch.Tensor, s: torch.Tensor, vh: torch.Tensor) -> torch.Tensor:
    """x times the squares of its singular values: the signs of vectors are any."""
    return (u * s.pow(3).unsqueeze(-2)) @ vh


PRODUCTS: Table = {
    "linear": (F.linear, (X, _x(5, 4, seed=4), _x(5, seed=5))),
    "linear_no_bias": (F.linear, (LINE, _x(5, 9, seed=4))),
    "matmul": (torch.matmul, (X, _x(4, 2, seed=3))),
    "matmul_batches": (torch.matmul, (_x(2, 1, 3, 4), _x(5, 4, 2, seed=3))),
    "matmul_vector": (torch.matmul, (LINE, _x(9, seed=3))),
    "dot": (torch.dot, (_x(4), _x(4, seed=1))),
    "mv": (torch.mv, (X, _x(4, seed=1))),
    "bmm": (torch.bmm, (_x(2, 3, 4), _x(2, 4, 5, seed=1))),
    "addmm": (lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2.0), (_x(2), X, _x(4, 2, seed=3))),
    "baddbmm": (torch.baddbmm, (_x(2, 3, 5), _x(2, 3, 4), _x(2, 4, 5, seed=1))),
    "einsum": (lambda x, y: torch.einsum("bij,bjk->bki", x, y), (_x(2, 3, 4), _x(2, 4, 5, seed=1))),
    "outer": (torch.outer, (_x(3), _x(4, seed=1))),
    "cholesky": (torch.linalg.cholesky, (SQUARE,)),
    "eigh": (lambda x: _products_of_columns(torch.linalg.eigh(x)), (SQUARE,)),
    "eigh_upper": (lambda x: _products_of_columns(torch.linalg.eigh(x, UPLO="U")), (SQUARE,)),
    "eigvalsh": (torch.linalg.eigvalsh, (SQUARE,)),
    "qr": (lambda x: torch.linalg.qr(x)[0].abs() @ torch.linalg.qr(x)[1].abs(), (SQUARE[:, :2],)),
    "svd": (lambda x: _of_singular_vectors(*torch.linalg.svd(x, full_matrices=False)), (SQUARE[:, :2],)),
    "svdvals": (torch.linalg.svdvals, (X,)),
    "attention": (F.scaled_dot_product_attention, (_x(2, 3, 4, 5), _x(2, 3, 6, 5, seed=1), _x(2, 3, 6, 5, seed=2))),
    "attention_causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (_x(2, 3, 4, 5), _x(2, 3, 4, 5, seed=1), _x(2, 3, 4, 5, seed=2)),
    ),
    "attention_mask": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(4, 4, dtype=torch.bool).tril()),
        (_x(2, 3, 4, 5), _x(2, 3, 4, 5, seed=1), _x(2, 3, 4, 5, seed=2)),
    ),
    "attention_bias": (
        lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, attn_mask=b, scale=0.3),
        (_x(2, 3, 4, 5), _x(2, 3, 4, 5, seed=1), _x(2, 3, 4, 5, seed=2), _x(4, 4, seed=3)),
    ),
    "attention_grouped": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (_x(2, 4, 4, 5), _x(2, 2, 4, 5, seed=1), _x(2, 2, 4, 5, seed=2)),
    ),
}

_KERNEL = _x(6, 4, 3, 3, seed=4)

IMAGES: Table = {
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=1), (LINE, _x(3, 4, 3, seed=4), _x(3, seed=5))),
    "conv2d": (lambda x, w: F.conv2d(x, w, stride=(2, 1), padding=1), (IMAGE, _KERNEL)),
    "conv2d_groups": (lambda x, w: F.conv2d(x, w, groups=2, dilation=2), (IMAGE, _x(4, 2, 2, 2, seed=4))),
    "conv2d_same": (lambda x, w: F.conv2d(x, w, padding="same"), (IMAGE, _x(3, 4, 2, 3, seed=4))),
    "conv2d_one_image": (lambda x, w: F.conv2d(x, w), (IMAGE[0], _KERNEL)),
    "conv3d": (F.conv3d, (VOLUME, _x(3, 2, 2, 2, 2, seed=4))),
    "conv_transpose2d": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
        (IMAGE, _x(4, 3, 3, 3, seed=4)),
    ),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2), (LINE, _x(4, 3, 3, seed=4))),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (IMAGE,)),
    "max_pool2d_padded": (lambda x: F.max_pool2d(x, 3, stride=2, padding=1), (IMAGE,)),
    "max_pool2d_ceil": (lambda x: F.max_pool2d(x, 2, ceil_mode=True), (IMAGE,)),
    "max_pool2d_dilated": (lambda x: F.max_pool2d(x, 2, stride=1, dilation=2), (IMAGE,)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 3), (LINE,)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), (IMAGE,)),
    "avg_pool2d_uncounted": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (IMAGE,)),
    "avg_pool2d_ceil": (lambda x: F.avg_pool2d(x, 2, ceil_mode=True), (IMAGE,)),
    "avg_pool2d_divisor": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), (IMAGE,)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, padding=1), (LINE,)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (IMAGE,)),
    "adaptive_avg_pool2d_one": (lambda x: F.adaptive_avg_pool2d(x, 1), (IMAGE,)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 2), (IMAGE,)),
    "batch_norm_eval": (
        lambda x, g, b: F.batch_norm(x, *torch.arange(8, dtype=torch.float64).view(2, 4), g, b),
        (IMAGE, _x(4, seed=1), _x(4, seed=2)),
    ),
    "batch_norm_of_batch": (lambda x, g: F.batch_norm(x, None, None, g, training=True), (IMAGE, _x(4))),
    "layer_norm": (lambda x, g, b: F.layer_norm(x, (9,), g, b), (LINE, _x(9), _x(9, seed=1))),
    "layer_norm_two_axes": (lambda x, g, b: F.layer_norm(x, (4, 9), g, b), (LINE, _x(4, 9), _x(4, 9, seed=1))),
    "layer_norm_plain": (lambda x: F.layer_norm(x, (9,)), (LINE,)),
    "rms_norm": (lambda x, g: F.rms_norm(x, (9,), g, eps=1e-5), (LINE, _x(9))),
    "rms_norm_no_eps": (lambda x: F.rms_norm(x, (9,)), (LINE,)),
    "group_norm": (lambda x, g, b: F.group_norm(x, 2, g, b), (IMAGE, _x(4), _x(4, seed=1))),
    "instance_norm": (lambda x: F.instance_norm(x), (IMAGE,)),
    "local_response_norm": (lambda x: F.local_response_norm(x, 3), (IMAGE,)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), (IMAGE,)),
    "nearest_size": (lambda x: F.interpolate(x, size=(4, 7)), (IMAGE,)),
    "nearest_exact": (lambda x: F.interpolate(x, size=(4, 7), mode="nearest-exact"), (IMAGE,)),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"), (IMAGE,)),
    "bilinear_corners": (lambda x: F.interpolate(x, size=(9, 4), mode="bilinear", align_corners=True), (IMAGE,)),
    "bicubic": (lambda x: F.interpolate(x, size=(9, 4), mode="bicubic"), (IMAGE,)),
    "linear": (lambda x: F.interpolate(x, size=13, mode="linear"), (LINE,)),
    "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), (IMAGE, _x(2, 3, 3, 2, low=-1, high=1))),
    "affine_grid": (lambda t: F.affine_grid(t, [2, 1, 3, 4], align_corners=False), (_x(2, 2, 3),)),
    "unfold": (lambda x: F.unfold(x, 2, padding=1, stride=2), (IMAGE,)),
    "fold": (lambda x: F.fold(x, (4, 4), 2, stride=2), (_x(2, 8, 4),)),
    "tensor_unfold": (lambda x: x.unfold(2, 3, 2), (LINE,)),
}

FAMILIES: dict[str, Table] = {
    "pointwise": POINTWISE,
    "integers": INTEGERS,
    "reductions": REDUCTIONS,
    "layout": LAYOUT,
    "indexing": INDEXING,
    "products": PRODUCTS,
    "images": IMAGES,
}


def _written(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[1:, :2] = 0.5
    y.mul_(2)
    return y


def _written_column(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[:, 1] = x[:, 0]
    view = y.view(-1)
    view.add_(1)
    return y


def _partly_without_gradient(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x.abs().max() * 2
    return x * scale
