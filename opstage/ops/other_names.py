"""Names in PyTorch and NumPy for things that Opstage names differently: errors mention Opstage's name.

The guide's table for PyTorch users has the same pairs; a test compares them.
"""

from __future__ import annotations

from collections.abc import Collection
from inspect import Parameter, signature
from typing import Any

from .errors import UnknownNameError

_SELECT = "ops.select(mask, x, y)"
_SHOW = 'opstage.debug.show(ops, x, "h")'
_CONCAT = "ops.concat([x, y], axis=0)"
_FULL = "ops.full(shape=…, value={})"
_LIKE = "ops.full(shape=x.shape, value={}, dtype=x.dtype)"
_NO_INPLACE = "nothing changes in place: a program returns what is new"
_AXIS = "with axis="

OPS_NAMES: dict[str, str] = {
    # elementwise
    "subtract": "ops.sub(x, y)",
    "multiply": "ops.mul(x, y)",
    "divide": "ops.div(x, y)",
    "true_divide": "ops.div(x, y)",
    "negative": "ops.neg(x)",
    "absolute": "ops.abs(x)",
    "remainder": "ops.mod",
    "bitwise_not": "ops.bitwise_xor(x, -1)",
    "bitwise_left_shift": "ops.left_shift",
    "bitwise_right_shift": "ops.right_shift",
    "rint": "ops.round(x)",
    "fix": "ops.trunc(x)",
    "float_power": "ops.power",
    "clip": "ops.clamp(x, lo=…, hi=…)",
    "arcsin": "ops.asin(x)",
    "arccos": "ops.acos(x)",
    "arctan": "ops.atan(x)",
    "arctan2": "ops.atan2(y, x)",
    "arcsinh": "ops.asinh(x)",
    "arccosh": "ops.acosh(x)",
    "arctanh": "ops.atanh(x)",
    "logsigmoid": "ops.log_sigmoid(x)",
    "hard_sigmoid": "ops.hardsigmoid(x)",
    "hard_swish": "ops.hardswish(x)",
    "hard_tanh": "ops.hardtanh(x, lo=-1, hi=1)",
    "thresholded_relu": "ops.threshold(x, threshold=…, value=0)",
    "prelu": "opstage.ops.derived.prelu(ops, x, weight)",
    "glu": "opstage.ops.derived.glu(ops, x, axis=…)",
    "LSTM": "opstage.ops.derived.lstm(ops, x, params)",
    "GRU": "opstage.ops.derived.gru(ops, x, params)",
    "RNN": "opstage.ops.derived.rnn(ops, x, params)",
    "ctc_loss": "opstage.ops.derived.ctc_loss(ops, log_probs, targets, input_lengths, target_lengths)",
    "nan_to_num": "opstage.ops.derived.nan_to_num(ops, x)",
    "swish": "ops.silu(x)",
    "hypot": "ops.sqrt(x * x + y * y)",
    "clamp_min": "ops.maximum(x, lo)",
    "clamp_max": "ops.minimum(x, hi)",
    "softmin": "ops.softmax(ops.neg(x), axis=…)",
    "normalize": "x / opstage.ops.derived.norm(ops, x, axis=…, keepdims=True)",
    "fmax": "ops.maximum(x, y)",
    "fmin": "ops.minimum(x, y)",
    # masks and dtypes
    "lt": "ops.less(x, y), or x < y",
    "le": "ops.less_equal(x, y), or x <= y",
    "gt": "ops.less(y, x), or x > y",
    "ge": "ops.less_equal(y, x), or x >= y",
    "eq": "ops.equal(x, y), or x == y",
    "ne": "ops.logical_not(ops.equal(x, y)), or x != y",
    "greater": "ops.less(y, x), or x > y",
    "greater_equal": "ops.less_equal(y, x), or x >= y",
    "not_equal": "ops.logical_not(ops.equal(x, y)), or x != y",
    "where": _SELECT,
    "masked_fill": "opstage.ops.derived.masked_fill(ops, x, mask, value=…)",
    "to": 'ops.cast(x, dtype="float32")',
    "type": 'ops.cast(x, dtype="float32")',
    "astype": 'ops.cast(x, dtype="float32")',
    "float": "ops.cast(x, dtype=ops.dtype)",
    "double": 'ops.cast(x, dtype="float64")',
    "half": 'ops.cast(x, dtype="float16")',
    "long": 'ops.cast(x, dtype="int64")',
    "int": 'ops.cast(x, dtype="int32")',
    "bool": 'ops.cast(x, dtype="bool")',
    "stop_gradient": "ops.detach(x)",
    # made from nothing
    "zeros": _FULL.format("0.0"),
    "ones": _FULL.format("1.0"),
    "empty": _FULL.format("0.0"),
    "zeros_like": _LIKE.format("0.0"),
    "ones_like": _LIKE.format("1.0"),
    "full_like": _LIKE.format("…"),
    "arange": "ops.iota(shape=(n,)), or opstage.ops.derived.arange(ops, start, stop, step=…)",
    "linspace": "opstage.ops.derived.linspace(ops, start, stop, num=…)",
    "eye": "opstage.ops.derived.eye(ops, n)",
    "tril": "opstage.ops.derived.tril(ops, x, k=…)",
    "triu": "opstage.ops.derived.triu(ops, x, k=…)",
    "tensor": "ops.const(value)",
    "as_tensor": "ops.const(value)",
    "from_numpy": "ops.const(value)",
    "array": "ops.const(value)",
    "asarray": "ops.const(value)",
    "rand": "ops.rand_uniform(shape=…)",
    "randn": "ops.rand_normal(shape=…)",
    "rand_like": "ops.rand_uniform(shape=x.shape)",
    "randn_like": "ops.rand_normal(shape=x.shape)",
    "uniform": "ops.rand_uniform(shape=…)",
    "normal": "ops.rand_normal(shape=…)",
    "bernoulli": "ops.bernoulli_mask(p, shape=…)",
    "randint": 'ops.cast(ops.rand_uniform(shape=…) * n, dtype="int64"), below n',
    "randperm": "ops.argsort(ops.rand_uniform(shape=(n,)))",
    "manual_seed": "opstage.Options(seed=…): random bits are a function of seed, step and place",
    # control flow
    "if_else": "ops.cond(pred, true_fn, false_fn, *operands)",
    "case": "ops.switch(index, branches, *operands)",
    "fori_loop": "ops.scan(f, carry, None, length=…)",
    "fori": "ops.scan(f, carry, None, length=…)",
    "map": "ops.scan(f, None, xs)",
    "associative_scan": "ops.linear_recurrence(…), ops.cumsum or ops.scan",
    # reductions
    "mean": f"ops.reduce_mean(x), {_AXIS}",
    "max": f"ops.reduce_max(x), {_AXIS}",
    "amax": f"ops.reduce_max(x), {_AXIS}",
    "min": f"ops.reduce_min(x), {_AXIS}; of two tensors ops.minimum(x, y)",
    "amin": f"ops.reduce_min(x), {_AXIS}",
    "any": f"ops.reduce_any(x), {_AXIS}",
    "all": f"ops.reduce_all(x), {_AXIS}",
    "inverse": "opstage.ops.derived.inverse(ops, x); ops.inv is 1/x of each element",
    "eigvalsh": "ops.eigh(x)[0]",
    "svdvals": "ops.svd(x)[1]",
    "logdet": "ops.slogdet(x)[1]",
    "solve_triangular": "ops.triangular_solve(a, b, lower=…)",
    "prod": f"ops.reduce_prod(x), {_AXIS}",
    "var": "opstage.ops.derived.var(ops, x, axis=…)",
    "std": "opstage.ops.derived.std(ops, x, axis=…)",
    "norm": "opstage.ops.derived.norm(ops, x, axis=…)",
    "vector_norm": "opstage.ops.derived.norm(ops, x, axis=…)",
    "median": "opstage.ops.derived.median(ops, x, axis=…)",
    "quantile": "opstage.ops.derived.quantile(ops, x, q=…, axis=…)",
    "sort": "opstage.ops.derived.sort(ops, x, axis=…)",
    "topk": "opstage.ops.derived.top_k(ops, x, k=…, axis=…)",
    "top_k": "opstage.ops.derived.top_k(ops, x, k=…, axis=…)",
    "searchsorted": "opstage.ops.derived.searchsorted(ops, ordered, values)",
    "grouped_mm": "opstage.ops.derived.grouped_matmul(ops, x, w, ends)",
    "ragged_dot": "opstage.ops.derived.grouped_matmul(ops, x, w, ends)",
    "bincount": "opstage.ops.derived.bincount(ops, x, size=…)",
    "segment_sum": "opstage.ops.derived.segment_sum(ops, x, segments, count=…)",
    "segment_max": "opstage.ops.derived.segment_max(ops, x, segments, count=…)",
    "segment_min": "opstage.ops.derived.segment_min(ops, x, segments, count=…)",
    "cummax": "opstage.ops.derived.cummax(ops, x, axis=…)",
    "cummin": "opstage.ops.derived.cummin(ops, x, axis=…)",
    "unique": "opstage.ops.derived.unique(ops, x, size=…)",
    "logsumexp": "opstage.ops.derived.logsumexp(ops, x, axis=…)",
    # layout
    "view": "ops.reshape(x, shape=…)",
    "view_as": "ops.reshape(x, shape=y.shape)",
    "reshape_as": "ops.reshape(x, shape=y.shape)",
    "ravel": "ops.flatten(x)",
    "t": "ops.transpose2d(x)",
    "T": "ops.transpose2d(x), or ops.permute(x, axes=…)",
    "mT": "ops.permute(x, axes=…)",
    "transpose": "ops.transpose2d(x) of a matrix, or ops.permute(x, axes=…)",
    "swapaxes": "opstage.ops.derived.swapaxes(ops, x, first=…, second=…)",
    "moveaxis": "opstage.ops.derived.moveaxis(ops, x, source=…, target=…)",
    "movedim": "opstage.ops.derived.moveaxis(ops, x, source=…, target=…)",
    "expand": "ops.broadcast_to(x, shape=…)",
    "expand_as": "ops.broadcast_to(x, shape=y.shape)",
    "tile": "opstage.ops.derived.tile(ops, x, repeats=…)",
    "repeat": "opstage.ops.derived.tile(ops, x, repeats=…)",
    "expand_dims": "ops.unsqueeze(x, axis=…), or x[:, None]",
    "cat": _CONCAT,
    "concatenate": _CONCAT,
    "hstack": "ops.concat([x, y], axis=-1)",
    "vstack": _CONCAT,
    "chunk": "opstage.ops.derived.chunk(ops, x, chunks=…, axis=…)",
    "unbind": "opstage.ops.derived.unbind(ops, x, axis=…), or x[0], x[1], …",
    "narrow": "ops.slice(x, axis=…, start=…, length=…), or x[:, 1:5]",
    "flip": "opstage.ops.derived.flip(ops, x, axis=…)",
    "roll": "opstage.ops.derived.roll(ops, x, shift=…, axis=…)",
    "contiguous": "the ref itself: layout is not a part of the language",
    "clone": "the ref itself: nothing changes in place",
    "copy": "the ref itself: nothing changes in place",
    "fliplr": "opstage.ops.derived.flip(ops, x, axis=1)",
    "flipud": "opstage.ops.derived.flip(ops, x, axis=0)",
    "repeat_interleave": "opstage.ops.derived.repeat_interleave(ops, x, repeats=…, axis=…)",
    "unstack": "opstage.ops.derived.unbind(ops, x, axis=…)",
    "diag": "opstage.ops.derived.diag(ops, x, k=…)",
    "diagonal": "opstage.ops.derived.diagonal(ops, x, k=…, first=…, second=…)",
    "trace": "opstage.ops.derived.trace(ops, x)",
    "meshgrid": "opstage.ops.derived.meshgrid(ops, x, y)",
    # indices
    "take": "opstage.ops.derived.take(ops, x, idx, axis=…), or ops.gather_rows(x, idx)",
    "index_select": "opstage.ops.derived.take(ops, x, idx, axis=…), or ops.gather_rows(x, idx)",
    "gather": "opstage.ops.derived.take_along_axis(ops, x, idx, axis=…), of whole rows ops.gather_rows(x, idx)",
    "take_along_axis": "opstage.ops.derived.take_along_axis(ops, x, idx, axis=…)",
    "index_add": "opstage.ops.derived.index_add(ops, x, idx, v, axis=…), of rows ops.scatter_add_row(…)",
    "scatter_add": 'opstage.ops.derived.put_along_axis(ops, x, idx, v, axis=…, reduce="add"), or ops.scatter_add_row',
    "embedding": "opstage.ops.derived.embedding(ops, table, idx)",
    "one_hot": "opstage.ops.derived.one_hot(ops, labels, classes=…)",
    "scatter": "opstage.ops.derived.put_along_axis(ops, x, idx, v, axis=…)",
    "scatter_reduce": "opstage.ops.derived.put_along_axis(ops, x, idx, v, axis=…, reduce=…)",
    "put_along_axis": "opstage.ops.derived.put_along_axis(ops, x, idx, v, axis=…)",
    "index_put": "opstage.ops.derived.scatter_nd(ops, x, idx, v)",
    "gather_nd": "opstage.ops.derived.gather_nd(ops, x, idx)",
    "scatter_nd": "opstage.ops.derived.scatter_nd(ops, x, idx, v)",
    "nonzero": "opstage.ops.derived.nonzero(ops, mask, size=…)",
    "argwhere": "opstage.ops.derived.nonzero(ops, mask, size=…)",
    "masked_select": "opstage.ops.derived.masked_select(ops, x, mask, size=…)",
    "compress": "opstage.ops.derived.masked_select(ops, x, mask, size=…)",
    # products
    "mm": "ops.matmul(x, y), or x @ y",
    "mv": "x @ y, made of ops.matmul",
    "dot": "x @ y, made of ops.matmul",
    "einsum": "opstage.ops.derived.einsum(ops, equation, x, y)",
    "addmm": "ops.linear(weight, bias, x), or x @ y + b",
    "ger": "x[:, None] * y[None, :]",
    "vdot": "ops.sum(x * y)",
    "inner": "ops.sum(x * y) of vectors",
    "tensordot": "opstage.ops.derived.einsum(ops, equation, x, y)",
    "kron": "opstage.ops.derived.einsum(ops, equation, x, y), and ops.reshape",
    "baddbmm": "ops.bmm(x, y), or x @ y + b",
    "outer": "x[:, None] * y[None, :]",
    # layers and losses
    "conv1d": "ops.conv(kernel, bias, x); the rank is the kernel's",
    "conv3d": "ops.conv(kernel, bias, x); the rank is the kernel's",
    "conv_transpose1d": "ops.conv_transpose(kernel, bias, x)",
    "conv_transpose3d": "ops.conv_transpose(kernel, bias, x)",
    "max_pool1d": "ops.max_pool(x, kernel=(k,))",
    "max_pool3d": "ops.max_pool(x, kernel=(k, k, k))",
    "avg_pool1d": "ops.avg_pool(x, kernel=(k,))",
    "avg_pool3d": "ops.avg_pool(x, kernel=(k, k, k))",
    "adaptive_avg_pool2d": "opstage.ops.derived.adaptive_avg_pool(ops, x, size=…)",
    "adaptive_avg_pool1d": "opstage.ops.derived.adaptive_avg_pool(ops, x, size=…)",
    "adaptive_avg_pool3d": "opstage.ops.derived.adaptive_avg_pool(ops, x, size=…)",
    "adaptive_max_pool1d": "opstage.ops.derived.adaptive_max_pool(ops, x, size=…)",
    "adaptive_max_pool2d": "opstage.ops.derived.adaptive_max_pool(ops, x, size=…)",
    "adaptive_max_pool3d": "opstage.ops.derived.adaptive_max_pool(ops, x, size=…)",
    "lp_pool1d": "opstage.ops.derived.lp_pool(ops, x, p=…, kernel=…)",
    "lp_pool2d": "opstage.ops.derived.lp_pool(ops, x, p=…, kernel=…)",
    "im2col": "opstage.ops.derived.unfold(ops, x, kernel=…)",
    "col2im": "opstage.ops.derived.fold(ops, x, size=…, kernel=…)",
    "unfold": "opstage.ops.derived.unfold(ops, x, kernel=…)",
    "pixel_shuffle": "opstage.ops.derived.pixel_shuffle(ops, x, factor=…)",
    "pixel_unshuffle": "opstage.ops.derived.pixel_unshuffle(ops, x, factor=…)",
    "local_response_norm": "opstage.ops.derived.local_response_norm(ops, x, size=…)",
    "fold": "opstage.ops.derived.fold(ops, x, size=…, kernel=…)",
    "instance_norm": "opstage.ops.derived.instance_norm(ops, x, gamma, beta)",
    "interpolate": "opstage.ops.derived.resize(ops, x, size=…, mode=…)",
    "upsample": "opstage.ops.derived.resize(ops, x, scale=…, mode=…)",
    "grid_sample": "opstage.ops.derived.grid_sample(ops, x, grid)",
    "affine_grid": "opstage.ops.derived.affine_grid(ops, theta, size=…)",
    "dropout": "opstage.ops.derived.dropout(ops, x, p, train)",
    "multi_head_attention_forward": "ops.multi_head_attention(…)",
    "nll_loss": "ops.cross_entropy(logits, labels), of logits before log_softmax",
    "mse": "ops.mse_loss(x, y)",
    "mean_squared_error": "ops.mse_loss(x, y)",
    "softmax_cross_entropy": "ops.cross_entropy(logits, labels)",
    "sparse_categorical_crossentropy": "ops.cross_entropy(logits, labels)",
    "bce_loss": "opstage.ops.derived.binary_cross_entropy_with_logits(ops, logits, targets), of logits",
    "l1_loss": "ops.reduce_mean(ops.abs(x - y))",
    "binary_cross_entropy_with_logits": "opstage.ops.derived.binary_cross_entropy_with_logits(ops, logits, targets)",
    "binary_cross_entropy": "opstage.ops.derived.binary_cross_entropy_with_logits(ops, logits, targets), of logits",
    "huber_loss": "opstage.ops.derived.huber(ops, x, y, delta=…)",
    "smooth_l1_loss": "opstage.ops.derived.huber(ops, x, y, delta=beta), divided by beta",
    "kl_div": "opstage.ops.derived.kl_div(ops, x, y)",
    "cosine_similarity": "opstage.ops.derived.cosine_similarity(ops, x, y)",
    "batch_norm2d": "ops.batch_norm(…)",
    # looking
    "debug_print": _SHOW,
    "print": _SHOW,
    "debug": _SHOW,
}
"""Names of PyTorch and NumPy that users write on `ops`, with Opstage's equivalents."""

REF_NAMES: dict[str, str] = {
    "size": "x.shape; x.shape[0] is the size of an axis",
    "ndim": "len(x.shape)",
    "dim": "len(x.shape)",
    "numel": "the product of x.shape",
    "item": "a result: a program returns a ref, and the caller reads the number",
    "tolist": "a result: a program returns a ref, and the caller reads the array",
    "numpy": "a result: a program returns a ref, and the caller reads the array",
    "backward": "opstage.value_and_grad(program, *args), or session.backward(x)",
    "grad": "opstage.value_and_grad(program, *args), or session.grad(x)",
    "requires_grad": "opstage.Param(requires_grad=…), or requires_grad= of a trainer",
    "requires_grad_": "opstage.Param(requires_grad=…), or requires_grad= of a trainer",
    "device": 'opstage.Options(device="cuda"): a program is the same on every device',
    "cuda": 'opstage.Options(device="cuda"): a program is the same on every device',
    "cpu": 'opstage.Options(device="cpu"): a program is the same on every device',
}
"""Names that users only write as attributes of a ref."""

PACKAGE_NAMES: dict[str, str] = {
    "nn": "functions over ops with a tree of parameters (ops.linear, ops.conv, opstage.init); opstage.ScalarModuleDef "
    "for an object",
    "Module": "opstage.ScalarModuleDef, or a function of ops and a tree of parameters",
    "Parameter": "opstage.Param",
    "Tensor": "opstage.Ref; arrays of NumPy go in and come out",
    "tensor": "np.asarray(value): arrays of NumPy go in and come out; in a program ops.const(value)",
    "as_tensor": "np.asarray(value): arrays of NumPy go in and come out; in a program ops.const(value)",
    "from_numpy": "the array itself: arrays of NumPy go in and come out",
    "no_grad": "opstage.run, which differentiates nothing; in a program ops.detach(x)",
    "inference_mode": "opstage.run, which differentiates nothing",
    "autograd": "opstage.value_and_grad, opstage.vjp, opstage.jvp, opstage.hvp; in a program opstage.transform.grad",
    "func": "opstage.value_and_grad, opstage.vjp, opstage.jvp, opstage.hvp; in a program opstage.transform.grad",
    "grad": "opstage.value_and_grad(program, *args); in a program opstage.transform.grad(ops, f, x)",
    "jit": 'opstage.compile, or opstage.Options(backend="compiled")',
    "vmap": "programs of batches: ops take leading batch axes",
    "manual_seed": "opstage.Options(seed=…)",
    "set_default_dtype": "opstage.Options(dtype=…)",
    "set_detect_anomaly": "opstage.Options(detect_anomaly=True)",
    "set_num_threads": "opstage.Options",
    "save": "opstage.training.checkpoint.save",
    "cuda": 'opstage.Options(device="cuda")',
    "device": 'opstage.Options(device="cuda")',
    "utils": "opstage.data for datasets and loaders, opstage.optim.clip for gradients",
    "DataLoader": "opstage.data.Loader",
    "TensorDataset": "opstage.data.from_arrays",
    "random_split": "opstage.data.train_test_split",
    "functional": "ops, the first argument of a program: ops.relu(x)",
    "numpy": "ops, the first argument of a program: ops.exp(x)",
    "float32": 'its name as a string, "float32"',
    "float64": 'its name as a string, "float64"',
    "float16": 'its name as a string, "float16"',
    "int64": 'its name as a string, "int64"',
    "int32": 'its name as a string, "int32"',
}
"""Names that users write as attributes of the package."""


def no_such_op(ops: object, name: str, known: Collection[str]) -> UnknownNameError:
    """Return the error for `ops.name`, which is not an op."""
    if name.startswith("__"):
        return _plain(ops, name, "")
    ours = OPS_NAMES.get(name)
    if ours is None and name.endswith("_") and name[:-1] in known:
        ours = f"ops.{name[:-1]}: {_NO_INPLACE}"
    ours = ours or _derived(name)
    if ours is None:
        return _plain(ops, name, "")
    return _renamed(f"ops.{name}: Opstage calls it {ours}")


def no_such_method(ref: object, name: str, known: Collection[str]) -> UnknownNameError:
    """Return the error for `ref.name`: a ref only has a shape, a dtype and operators."""
    if name.startswith("_"):
        return _plain(ref, name, "")
    ours = REF_NAMES.get(name)
    if ours is None and name in known:
        ours = f"ops.{name}(x, …)"
    if ours is None and name.endswith("_") and (name[:-1] in known or name[:-1] in OPS_NAMES):
        ours = f"{OPS_NAMES.get(name[:-1], f'ops.{name[:-1]}(x, …)')}; {_NO_INPLACE}"
    ours = ours or OPS_NAMES.get(name) or _derived(name)
    if ours is None:
        return _plain(ref, name, "; ops are methods of the program's first argument, ops.relu(x)")
    return _renamed(f"a ref has no {name}; ops are methods of the program's first argument: Opstage calls it {ours}")


def _derived(name: str) -> str | None:
    """Return the call of a derived function, which is written as if it were an op; None if there is none."""
    from . import derived  # stands above this module, which is asked when a name is not found

    function = getattr(derived, name, None) if name in derived.__all__ else None
    if function is None:
        return None
    positions = [p.name for p in signature(function).parameters.values() if p.kind is not Parameter.KEYWORD_ONLY]
    return f"opstage.ops.derived.{name}({', '.join(positions)})"


def of_the_package(name: str) -> str:
    """Return the replacement for `opstage.name`, as an addition to the error; empty if it is unknown."""
    ours = PACKAGE_NAMES.get(name)
    if ours is not None:
        return f"; use {ours}"
    ours = OPS_NAMES.get(name)
    return "" if ours is None else f"; in a program, of which ops is the first argument, it is {ours}"


def _renamed(message: str) -> UnknownNameError:
    """Return an error without `name` and `obj`, for which Python would suggest a similarly spelled name."""
    return UnknownNameError(message)


def _plain(holder: Any, name: str, hint: str) -> UnknownNameError:
    return UnknownNameError(f"{type(holder).__name__!r} object has no attribute {name!r}{hint}", name, holder)
