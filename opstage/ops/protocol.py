"""`Ops`: the language in which models, losses, derivative rules and optimizers are written.

Refs are positional, static parameters keyword-only. Formulas, shapes and derivatives stand with each op's block in
`opstage/ops/catalogue/`; this file is the contract that interpreters keep and that editors complete from.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

from .cursor import Cursor
from .dims import Dim, DimFloat
from .primitive import Primitive, R, Static
from .types import DType, Shape

Number: TypeAlias = "int | float | Fraction | DimFloat"
ShapeLike: TypeAlias = "Sequence[Dim]"
Axes: TypeAlias = "int | Sequence[int] | None"
IntOrTuple: TypeAlias = "int | tuple[int, ...]"


class Ref(Protocol):
    """A tensor in a program: what any interpreter's refs let a program see."""

    @property
    def shape(self) -> Shape: ...
    @property
    def dtype(self) -> DType: ...


class Ops(Protocol[R]):
    """An interpreter of programs over refs of type R."""

    dtype: DType
    """The float dtype in which this program computes (`Options.dtype`)."""
    cursor: Cursor
    """Where the program is; shared by a whole stack of interpreters."""

    @abstractmethod
    def bind(self, primitive: Primitive, refs: tuple[R, ...], static: Static, /) -> tuple[R, ...]:
        """The seam: one op on refs; outputs, then residuals."""

    # Structure

    @abstractmethod
    def const(self, value: npt.ArrayLike | Fraction, /, *, dtype: str | DType | None = None) -> R:
        """A constant from a Python number or NumPy array; floats take the program's dtype unless one is given."""

    @abstractmethod
    def step(self) -> R:
        """The training step, an integer scalar that enters a program as a hidden input."""

    @abstractmethod
    def region(self, name: str, f: Callable[..., Any], /, *args: Any) -> Any:
        """`f(ops, *args)` as a named part of the program."""

    @abstractmethod
    def scan(
        self,
        f: Callable[..., tuple[Any, Any]],
        carry: Any,
        xs: Any,
        *,
        reverse: bool = False,
        length: Dim | None = None,
    ) -> tuple[Any, Any]:
        """The loop `carry, y = f(ops, carry, x)` over the entries x of xs: the last carry, and the y's stacked.

        f         called once, to trace it, with ops of its own, which it must use; refs from outside are constants of
                  the loop, and have gradients all the same. Returns a pair (carry, y)
        carry     a pytree of refs; f returns one of the same structure, shapes and dtypes
        xs        a pytree of refs that share their leading axis, along which the loop runs; None with `length` given
        reverse   run from the last entry to the first; the y's stay in the order of xs
        length    how many iterations, where xs does not say it

        The y's are a pytree of refs (or None), stacked along a new leading axis. Reverse mode keeps xs and the carry
        of every iteration, and computes the rest of the body anew: twice the forward work, but no residual of any op
        per iteration. A random op draws afresh in each iteration, by its position along xs. Without iterations the
        carry comes back unchanged. Raises ShapeError where xs disagree or the carry changes its type. As jax.lax.scan.
        """

    @abstractmethod
    def vjp_of(self, f: Callable[..., Any], /, *refs: R) -> tuple[Any, Callable[[Any], tuple[R | None, ...]]]:
        """Value of `f(ops, *refs)` and its pullback; see `opstage.transform.vjp`."""

    @abstractmethod
    def jvp_of(self, f: Callable[..., Any], refs: tuple[R, ...], tangents: tuple[R | None, ...], /) -> tuple[Any, Any]:
        """Value and tangent of `f(ops, *refs)`; see `opstage.transform.jvp`."""

    # Elementwise
    @abstractmethod
    def add(self, x: R, y: R, /) -> R:
        """x + y."""

    @abstractmethod
    def sub(self, x: R, y: R, /) -> R:
        """x - y."""

    @abstractmethod
    def mul(self, x: R, y: R, /) -> R:
        """x · y."""

    @abstractmethod
    def div(self, x: R, y: R, /) -> R:
        """x / y."""

    @abstractmethod
    def maximum(self, x: R, y: R, /) -> R:
        """The larger of x and y; a tie splits the gradient 0.5/0.5."""

    @abstractmethod
    def minimum(self, x: R, y: R, /) -> R:
        """The smaller of x and y; a tie splits the gradient 0.5/0.5."""

    @abstractmethod
    def neg(self, x: R, /) -> R:
        """-x."""

    @abstractmethod
    def scale(self, x: R, /, *, c: Number) -> R:
        """c · x for a static number c."""

    @abstractmethod
    def abs(self, x: R, /) -> R:
        """|x|; its derivative at 0 is 0."""

    @abstractmethod
    def sqrt(self, x: R, /) -> R:
        """Square root; nan below 0."""

    @abstractmethod
    def exp(self, x: R, /) -> R:
        """e^x."""

    @abstractmethod
    def log(self, x: R, /) -> R:
        """Natural logarithm; -inf at 0."""

    @abstractmethod
    def inv(self, x: R, /) -> R:
        """1/x."""

    @abstractmethod
    def sin(self, x: R, /) -> R:
        """Sine, of radians."""

    @abstractmethod
    def cos(self, x: R, /) -> R:
        """Cosine, of radians."""

    @abstractmethod
    def tanh(self, x: R, /) -> R:
        """Hyperbolic tangent."""

    @abstractmethod
    def sigmoid(self, x: R, /) -> R:
        """1/(1 + e^-x), never overflowing."""

    @abstractmethod
    def softplus(self, x: R, /) -> R:
        """log(1 + e^x), never overflowing."""

    @abstractmethod
    def erf(self, x: R, /) -> R:
        """Error function, 2/√π ∫₀ˣ e^(-t²) dt."""

    @abstractmethod
    def pow(self, x: R, /, *, exponent: Number) -> R:
        """x^exponent for a static exponent."""

    @abstractmethod
    def clamp(self, x: R, /, *, lo: Number, hi: Number) -> R:
        """x limited to [lo, hi]; gradient 1 inside and at the bounds."""

    @abstractmethod
    def safe_log(self, x: R, /, *, eps: Number) -> R:
        """log(max(x, eps))."""

    @abstractmethod
    def relu(self, x: R, /) -> R:
        """max(x, 0); its derivative at 0 is 0."""

    @abstractmethod
    def silu(self, x: R, /) -> R:
        """x · sigmoid(x)."""

    @abstractmethod
    def gelu(self, x: R, /, *, approximate: str = "tanh") -> R:
        """Gaussian error linear unit, "tanh" or exact ("none")."""

    @abstractmethod
    def tanh_grad(self, y: R, g: R, /) -> R:
        """g · (1 - y²), for y = tanh(x)."""

    @abstractmethod
    def sigmoid_grad(self, y: R, g: R, /) -> R:
        """g · y · (1 - y), for y = sigmoid(x)."""

    @abstractmethod
    def relu_grad(self, y: R, g: R, /) -> R:
        """g where y > 0, else 0."""

    @abstractmethod
    def silu_grad(self, x: R, g: R, /) -> R:
        """g · silu'(x)."""

    @abstractmethod
    def gelu_grad(self, x: R, g: R, /, *, approximate: str) -> R:
        """g · gelu'(x)."""

    # Masks, dtypes and creation
    @abstractmethod
    def less(self, x: R, y: R, /) -> R:
        """The mask x < y."""

    @abstractmethod
    def less_equal(self, x: R, y: R, /) -> R:
        """The mask x <= y."""

    @abstractmethod
    def equal(self, x: R, y: R, /) -> R:
        """The mask x = y."""

    @abstractmethod
    def logical_and(self, x: R, y: R, /) -> R:
        """Both masks."""

    @abstractmethod
    def logical_not(self, x: R, /) -> R:
        """The opposite mask."""

    @abstractmethod
    def select(self, mask: R, x: R, y: R, /) -> R:
        """x where mask, else y."""

    @abstractmethod
    def cast(self, x: R, /, *, dtype: str | DType) -> R:
        """x in another dtype."""

    @abstractmethod
    def detach(self, x: R, /) -> R:
        """x, through which no gradient flows."""

    @abstractmethod
    def full(self, *, shape: ShapeLike, value: Number, dtype: str | DType | None = None) -> R:
        """A tensor filled with one static number."""

    @abstractmethod
    def iota(self, *, shape: ShapeLike, axis: int = 0, dtype: str | DType = "int64") -> R:
        """The index along `axis`."""

    # Reduction
    @abstractmethod
    def sum(self, x: R, /) -> R:
        """Sum of all elements, a scalar."""

    @abstractmethod
    def reduce_sum(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Sum over axes; 0 over an empty one."""

    @abstractmethod
    def reduce_mean(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Mean over axes."""

    @abstractmethod
    def reduce_max(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Maximum over axes; ties share the gradient evenly."""

    @abstractmethod
    def argmax(self, x: R, /, *, axis: int = -1, keepdims: bool = False) -> R:
        """Index of the first maximum along an axis."""

    @abstractmethod
    def softmax(self, x: R, /, *, axis: int = -1) -> R:
        """e^x / Σ e^x along an axis, max-shifted."""

    @abstractmethod
    def log_softmax(self, x: R, /, *, axis: int = -1) -> R:
        """x - log Σ e^x along an axis, max-shifted."""

    @abstractmethod
    def softmax_grad(self, y: R, g: R, /, *, axis: int) -> R:
        """y · (g - Σ g·y), for y = softmax(x)."""

    @abstractmethod
    def log_softmax_grad(self, y: R, g: R, /, *, axis: int) -> R:
        """g - e^y · Σ g, for y = log_softmax(x)."""

    # Layout
    @abstractmethod
    def broadcast_to(self, x: R, /, *, shape: ShapeLike) -> R:
        """x repeated to `shape` by NumPy's rules."""

    @abstractmethod
    def reshape(self, x: R, /, *, shape: ShapeLike) -> R:
        """The same elements in row-major order in another shape; one -1 is inferred."""

    @abstractmethod
    def flatten(self, x: R, /, *, start: int = 0, end: int = -1) -> R:
        """Axes start..end merged into one."""

    @abstractmethod
    def permute(self, x: R, /, *, axes: Sequence[int]) -> R:
        """Axes reordered: result axis i is axis axes[i] of x."""

    @abstractmethod
    def transpose2d(self, x: R, /) -> R:
        """(a, b) -> (b, a)."""

    @abstractmethod
    def transpose3d_first_to_last(self, x: R, /) -> R:
        """(a, b, c) -> (b, c, a)."""

    @abstractmethod
    def transpose3d_last_to_first(self, x: R, /) -> R:
        """(a, b, c) -> (c, a, b)."""

    @abstractmethod
    def transpose3d_last_two(self, x: R, /) -> R:
        """(a, b, c) -> (a, c, b)."""

    @abstractmethod
    def swap_adjacent_at_depth(self, x: R, /, *, depth: int) -> R:
        """Axes depth and depth + 1 exchanged."""

    @abstractmethod
    def concat(self, xs: Sequence[R], /, *, axis: int = 0) -> R:
        """Tensors joined along an existing axis."""

    @abstractmethod
    def stack(self, xs: Sequence[R], /, *, axis: int = 0) -> R:
        """Tensors joined along a new axis."""

    @abstractmethod
    def slice(self, x: R, /, *, axis: int, start: Dim, length: Dim, step: int = 1) -> R:
        """`length` entries from `start` in steps along an axis; all must exist."""

    @abstractmethod
    def split(self, x: R, /, *, sizes: Sequence[Dim], axis: int = 0) -> tuple[R, ...]:
        """Consecutive slices of the given sizes along an axis."""

    @abstractmethod
    def pad(
        self, x: R, /, *, padding: Sequence[tuple[Dim, Dim]], value: Number = 0.0, interior: Sequence[int] | None = None
    ) -> R:
        """Constant cells before, after and between the entries of each axis."""

    @abstractmethod
    def squeeze(self, x: R, /, *, axis: Axes = None) -> R:
        """Axes of size 1 dropped; an axis of another size is an error."""

    @abstractmethod
    def unsqueeze(self, x: R, /, *, axis: int) -> R:
        """A new axis of size 1."""

    # Indexing
    @abstractmethod
    def gather_scalar(self, x: R, /, *, index: Dim, mode: str = "raise") -> R:
        """x[index] of a vector."""

    @abstractmethod
    def gather_row(self, x: R, /, *, index: Dim, mode: str = "raise") -> R:
        """x[index], a row."""

    @abstractmethod
    def gather_vec(self, x: R, idx: R, /, *, mode: str = "raise") -> R:
        """x[idx] of a vector, for integers of any shape."""

    @abstractmethod
    def gather_rows(self, x: R, idx: R, /, *, mode: str = "raise") -> R:
        """Rows x[idx], for integers of any shape."""

    @abstractmethod
    def scatter_add_vec(self, x: R, v: R, index: R | Dim, /, *, mode: str = "raise") -> R:
        """x with v added at entries `index`."""

    @abstractmethod
    def scatter_add_row(self, x: R, v: R, index: R | Dim, /, *, mode: str = "raise") -> R:
        """x with v added at rows `index`."""

    # Linear algebra, convolution, pooling
    @abstractmethod
    def matmul(self, x: R, y: R, /) -> R:
        """Matrix product (m, k)·(k, n)."""

    @abstractmethod
    def bmm(self, x: R, y: R, /) -> R:
        """Batched matrix product (..., m, k)·(..., k, n)."""

    @abstractmethod
    def linear(self, weight: R, bias: R | None, x: R, /) -> R:
        """x · weightᵀ + bias, weight (out, in), x (..., in)."""

    @abstractmethod
    def conv(
        self,
        kernel: R,
        bias: R | None,
        x: R,
        /,
        *,
        stride: IntOrTuple = 1,
        padding: IntOrTuple = 0,
        dilation: IntOrTuple = 1,
        groups: int = 1,
    ) -> R:
        """Cross-correlation, kernel (outC, inC/groups, *k), x ([N,] inC, *S)."""

    @abstractmethod
    def conv_transpose(
        self,
        kernel: R,
        bias: R | None,
        x: R,
        /,
        *,
        stride: IntOrTuple = 1,
        padding: IntOrTuple = 0,
        output_padding: int | tuple[Dim, ...] = 0,
        dilation: IntOrTuple = 1,
        groups: int = 1,
    ) -> R:
        """The adjoint of conv, kernel (inC, outC/groups, *k)."""

    @abstractmethod
    def conv_kernel_grad(
        self,
        x: R,
        g: R,
        /,
        *,
        kernel: tuple[Dim, ...],
        stride: IntOrTuple = 1,
        padding: IntOrTuple = 0,
        dilation: IntOrTuple = 1,
        groups: int = 1,
    ) -> R:
        """The cotangent of conv's kernel."""

    @abstractmethod
    def conv2d(
        self,
        kernel: R,
        bias: R | None,
        x: R,
        /,
        *,
        stride: IntOrTuple = 1,
        padding: IntOrTuple = 0,
        dilation: IntOrTuple = 1,
        groups: int = 1,
    ) -> R:
        """conv for images."""

    @abstractmethod
    def conv_transpose2d(
        self,
        kernel: R,
        bias: R | None,
        x: R,
        /,
        *,
        stride: IntOrTuple = 1,
        padding: IntOrTuple = 0,
        output_padding: IntOrTuple = 0,
        dilation: IntOrTuple = 1,
        groups: int = 1,
    ) -> R:
        """conv_transpose for images."""

    @abstractmethod
    def max_pool(
        self, x: R, /, *, kernel: tuple[int, ...], stride: IntOrTuple | None = None, padding: IntOrTuple = 0
    ) -> R:
        """Maximum over windows; the first maximum takes the gradient."""

    @abstractmethod
    def max_pool_scatter(
        self,
        g: R,
        index: R,
        /,
        *,
        shape: tuple[Dim, ...],
        kernel: tuple[int, ...],
        stride: IntOrTuple,
        padding: IntOrTuple,
    ) -> R:
        """Window values put back at the positions of their maxima."""

    @abstractmethod
    def max_pool_gather(
        self, x: R, index: R, /, *, kernel: tuple[int, ...], stride: IntOrTuple, padding: IntOrTuple
    ) -> R:
        """The entries of x at the positions of the window maxima."""

    @abstractmethod
    def avg_pool(
        self,
        x: R,
        /,
        *,
        kernel: tuple[int, ...],
        stride: IntOrTuple | None = None,
        padding: IntOrTuple = 0,
        count_include_pad: bool = True,
    ) -> R:
        """Mean over windows."""

    @abstractmethod
    def avg_pool_grad(
        self,
        g: R,
        /,
        *,
        shape: tuple[Dim, ...],
        kernel: tuple[int, ...],
        stride: IntOrTuple,
        padding: IntOrTuple,
        count_include_pad: bool,
    ) -> R:
        """The adjoint of avg_pool."""

    @abstractmethod
    def smooth_max_pool(
        self,
        x: R,
        /,
        *,
        kernel: tuple[int, ...],
        beta: Number,
        stride: IntOrTuple | None = None,
        padding: IntOrTuple = 0,
    ) -> R:
        """(1/beta) · log Σ e^(beta·x) over windows."""

    @abstractmethod
    def max_pool2d(self, x: R, /, *, kernel: IntOrTuple, stride: IntOrTuple | None = None) -> R:
        """max_pool for images, without padding."""

    @abstractmethod
    def max_pool2d_pad(
        self, x: R, /, *, kernel: IntOrTuple, stride: IntOrTuple | None = None, padding: IntOrTuple
    ) -> R:
        """max_pool for images."""

    @abstractmethod
    def avg_pool2d(self, x: R, /, *, kernel: IntOrTuple, stride: IntOrTuple | None = None) -> R:
        """avg_pool for images, without padding."""

    @abstractmethod
    def avg_pool2d_pad(
        self, x: R, /, *, kernel: IntOrTuple, stride: IntOrTuple | None = None, padding: IntOrTuple
    ) -> R:
        """avg_pool for images."""

    @abstractmethod
    def smooth_max_pool2d(self, x: R, /, *, kernel: IntOrTuple, beta: Number, stride: IntOrTuple | None = None) -> R:
        """smooth_max_pool for images."""

    # Normalization, attention, loss
    @abstractmethod
    def layer_norm(self, x: R, gamma: R | None, beta: R | None, /, *, eps: float = 1e-5) -> R:
        """(x - mean)/√(var + eps) · gamma + beta over the last axis."""

    @abstractmethod
    def rms_norm(self, x: R, gamma: R | None, /, *, eps: float = 1e-5) -> R:
        """x/√(mean(x²) + eps) · gamma over the last axis."""

    @abstractmethod
    def group_norm(self, x: R, gamma: R | None, beta: R | None, /, *, groups: int, eps: float = 1e-5) -> R:
        """Normalisation over channel groups of (N, C, *S)."""

    @abstractmethod
    def batch_norm(
        self, x: R, gamma: R | None, beta: R | None, /, *, channel_axis: int = 1, eps: float = 1e-5
    ) -> tuple[R, R, R]:
        """Training form: y, batch mean, unbiased batch variance."""

    @abstractmethod
    def batch_norm_eval(
        self,
        x: R,
        gamma: R | None,
        beta: R | None,
        mean: R,
        variance: R,
        /,
        *,
        channel_axis: int = 1,
        eps: float = 1e-5,
    ) -> R:
        """Evaluation form, with running statistics."""

    @abstractmethod
    def layer_norm_grad(self, x: R, gamma: R | None, mean: R, rstd: R, g: R, /) -> tuple[R, R, R]:
        """Cotangents of layer_norm's x, gamma, beta."""

    @abstractmethod
    def rms_norm_grad(self, x: R, gamma: R | None, rstd: R, g: R, /) -> tuple[R, R]:
        """Cotangents of rms_norm's x, gamma."""

    @abstractmethod
    def group_norm_grad(self, x: R, gamma: R | None, mean: R, rstd: R, g: R, /, *, groups: int) -> tuple[R, R, R]:
        """Cotangents of group_norm's x, gamma, beta."""

    @abstractmethod
    def batch_norm_grad(
        self,
        x: R,
        gamma: R | None,
        mean: R,
        rstd: R,
        g: R,
        g_mean: R,
        g_variance: R,
        /,
        *,
        channel_axis: int = 1,
    ) -> tuple[R, R, R]:
        """Cotangents of batch_norm's x, gamma, beta, from those of y, mean and variance."""

    @abstractmethod
    def scaled_dot_product_attention(self, q: R, k: R, v: R, mask: R | None = None, /, *, causal: bool = False) -> R:
        """softmax(q·kᵀ/√d)·v; mask True = attend."""

    @abstractmethod
    def scaled_dot_product_attention_grad(
        self, q: R, k: R, v: R, mask: R | None, peak: R, total: R, g: R, /, *, causal: bool = False
    ) -> tuple[R, R, R]:
        """Cotangents of q, k, v, from each query's greatest score and sum of exponentials."""

    @abstractmethod
    def multi_head_attention(
        self, wq: R, wk: R, wv: R, wo: R, x: R, mask: R | None = None, /, *, num_heads: int, causal: bool = False
    ) -> R:
        """Self-attention of (…, n, d), projections (d, H·h), output (H·h, d)."""

    @abstractmethod
    def mse_loss(self, x: R, y: R, /) -> R:
        """Mean squared difference over all elements."""

    @abstractmethod
    def cross_entropy(
        self,
        logits: R,
        labels: R,
        /,
        *,
        reduction: str = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> R:
        """-log softmax(logits)[label], classes on axis 1 (last for rank 1 and 2)."""

    @abstractmethod
    def cross_entropy_grad(
        self,
        logits: R,
        labels: R,
        peak: R,
        total: R,
        g: R,
        /,
        *,
        reduction: str,
        ignore_index: int,
        label_smoothing: float,
    ) -> R:
        """The cotangent of cross_entropy's logits, from each position's greatest logit and sum of exponentials."""

    # Randomness
    @abstractmethod
    def rand_uniform(
        self, *, shape: ShapeLike, seed: int | None = None, site: int | None = None, dtype: str | DType | None = None
    ) -> R:
        """Uniform in [0, 1), the same bits everywhere."""

    @abstractmethod
    def rand_normal(
        self, *, shape: ShapeLike, seed: int | None = None, site: int | None = None, dtype: str | DType | None = None
    ) -> R:
        """Standard normal by Box-Muller."""

    @abstractmethod
    def bernoulli_mask(
        self, keep_prob: R, /, *, shape: ShapeLike, seed: int | None = None, site: int | None = None
    ) -> R:
        """1 where keep_prob > u, else 0, u uniform."""

    # Optimizer updates
    @abstractmethod
    def sgd_update(self, p: R, g: R, lr: R, /, *, weight_decay: float = 0.0) -> R:
        """p - lr·g."""

    @abstractmethod
    def momentum_update(
        self, p: R, g: R, velocity: R, lr: R, /, *, momentum: float, nesterov: bool = False, weight_decay: float = 0.0
    ) -> tuple[R, R]:
        """SGD with (Nesterov) momentum: new p, velocity."""

    @abstractmethod
    def adagrad_update(self, p: R, g: R, total: R, lr: R, /, *, eps: float, weight_decay: float = 0.0) -> tuple[R, R]:
        """Adagrad: new p, sum of squares."""

    @abstractmethod
    def rmsprop_update(
        self, p: R, g: R, square: R, lr: R, /, *, alpha: float, eps: float, weight_decay: float = 0.0
    ) -> tuple[R, R]:
        """RMSprop: new p, mean square."""

    @abstractmethod
    def adam_update(
        self,
        p: R,
        g: R,
        m: R,
        v: R,
        lr: R,
        c1: R,
        c2: R,
        /,
        *,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float = 0.0,
    ) -> tuple[R, R, R]:
        """Adam: new p, m, v; c1 = 1 - beta1^t, c2 = 1 - beta2^t."""

    @abstractmethod
    def adamw_update(
        self,
        p: R,
        g: R,
        m: R,
        v: R,
        lr: R,
        c1: R,
        c2: R,
        /,
        *,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
    ) -> tuple[R, R, R]:
        """AdamW (decoupled decay): new p, m, v."""

    @abstractmethod
    def adadelta_update(
        self, p: R, g: R, square: R, delta: R, lr: R, /, *, rho: float, eps: float, weight_decay: float = 0.0
    ) -> tuple[R, R, R]:
        """Adadelta: new p, mean square, mean squared step."""

    @abstractmethod
    def muon_update(
        self,
        p: R,
        g: R,
        momentum_buffer: R,
        lr: R,
        /,
        *,
        momentum: float,
        nesterov: bool,
        weight_decay: float,
        steps: int,
        eps: float,
    ) -> tuple[R, R]:
        """Muon: new p, momentum buffer; Newton-Schulz orthogonalised step."""


__all__ = ["Axes", "IntOrTuple", "Number", "Ops", "R", "Ref", "ShapeLike"]
