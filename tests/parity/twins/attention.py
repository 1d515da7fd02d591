"""Twins: attention, recurrent layers and the CTC loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from opstage.ops import derived
from tests.parity.twin import Arrays, Case, Twin, both, fixed, integers, normal

_SIZES = (
    ((), 5, 7, 4, 3),
    ((2,), 5, 7, 4, 3),
    ((2, 3), 6, 6, 8, 8),
    ((1, 2), 1, 1, 4, 2),
    ((2, 2), 40, 60, 16, 16),
    ((1, 2), 70, 131, 8, 8),
)
"""(leading axes, queries, keys, size of a key, size of a value)."""


def _operands(batch: tuple[int, ...], n: int, m: int, d: int, e: int, mask: tuple[int, ...] | None) -> Arrays:
    def make(rng: Any) -> tuple[Any, ...]:
        q, k, v = (rng.standard_normal((*batch, *shape)) for shape in ((n, d), (m, d), (m, e)))
        allowed = None if mask is None else rng.random(mask) < 0.6
        if allowed is not None:
            allowed[..., 0] = True  # of rows that attend to nothing, below
        return q, k, v, allowed

    return make


def _hopeless(rng: Any) -> tuple[Any, ...]:
    """A query that may attend to nothing gives zeros, and takes no gradient."""
    mask = np.array([[True, False, True], [False, False, False]])
    return rng.standard_normal((2, 4)), rng.standard_normal((3, 4)), rng.standard_normal((3, 5)), mask


def _attention(
    q: Any, k: Any, v: Any, mask: Any, bias: Any = None, causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """PyTorch takes a mask of bools, one of floats or `is_causal`, not two of them."""
    if causal and (mask is not None or bias is not None):
        earlier = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        mask, causal = earlier if mask is None else mask & earlier, False
    if bias is not None and mask is not None:
        mask = torch.where(mask, bias, -torch.inf)
    return functional.scaled_dot_product_attention(
        q, k, v, bias if mask is None else mask, is_causal=causal, scale=scale
    )


def _cases() -> tuple[Case, ...]:
    found = []
    for batch, n, m, d, e in _SIZES:
        for mask in (None, (n, m), (*batch, n, m), (*(1,) * len(batch), 1, m)):
            for causal in (False, True):
                arrays = _operands(batch, n, m, d, e, mask)
                found.append(
                    Case(f"{batch} {n} {m} {mask} {causal}", arrays, {"causal": causal}, terms=2 * max(n, m, d))
                )
    return tuple({case.name: case for case in found}.values())


def _grad_operands(batch: tuple[int, ...], n: int, m: int, d: int, e: int, causal: bool) -> Arrays:
    def make(rng: Any) -> tuple[Any, ...]:
        q, k, v, _ = _operands(batch, n, m, d, e, None)(rng)
        scores = q @ np.swapaxes(k, -1, -2) / d**0.5
        if causal:
            scores[..., ~np.tri(n, m, dtype=bool)] = -np.inf
        peak = scores.max(axis=-1, keepdims=True)
        total = np.exp(scores - peak).sum(axis=-1, keepdims=True)
        return q, k, v, None, peak, total, rng.standard_normal((*batch, n, e))

    return make


def _attention_grad(q: Any, k: Any, v: Any, mask: Any, peak: Any, total: Any, g: Any, causal: bool) -> Any:
    leaves = tuple(x.detach().requires_grad_() for x in (q, k, v))
    return torch.autograd.grad(functional.scaled_dot_product_attention(*leaves, is_causal=causal), leaves, g)


_BIASES = (
    ((), 5, 7, 4, 3, (5, 7), False),
    ((2,), 5, 7, 4, 3, (2, 5, 1), True),
    ((2, 3), 6, 6, 8, 8, (3, 6, 6), False),
    ((2, 2), 40, 60, 16, 16, (2, 1, 1, 60), True),
    ((1, 2), 700, 431, 8, 8, (2, 700, 431), False),
    ((2,), 5, 7, 4, 3, (2, 1, 7), True),
    ((2,), 9, 9, 4, 4, (), True),
)
"""Leading axes, queries, keys, size of a key, size of a value; shape of the bias, whether there is a mask."""


def _shifts_rows(bias: tuple[int, ...]) -> bool:
    """Whether a bias is the same for all keys: its gradient is 0, and what is computed is rounding alone."""
    return not bias or bias[-1] == 1


def _biased_operands(
    batch: tuple[int, ...], n: int, m: int, d: int, e: int, bias: tuple[int, ...], masked: bool
) -> Arrays:
    def make(rng: Any) -> tuple[Any, ...]:
        operands = _operands(batch, n, m, d, e, (n, m) if masked else None)(rng)
        return *operands, rng.standard_normal(bias)

    return make


def _biased_grad_operands(*given: Any) -> Arrays:
    *size, causal = given

    def make(rng: Any) -> tuple[Any, ...]:
        q, k, v, mask, bias = _biased_operands(*size)(rng)
        scores = q @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5 + bias
        allowed = np.tri(*scores.shape[-2:], dtype=bool) if causal else np.ones(scores.shape[-2:], bool)
        scores = np.where(allowed if mask is None else mask & allowed, scores, -np.inf)
        peak = scores.max(axis=-1, keepdims=True)
        total = np.exp(scores - peak).sum(axis=-1, keepdims=True)
        return q, k, v, bias, mask, peak, total, rng.standard_normal((*q.shape[:-1], v.shape[-1]))

    return make


def _biased_grad(q: Any, k: Any, v: Any, bias: Any, mask: Any, peak: Any, total: Any, g: Any, causal: bool) -> Any:
    leaves = tuple(x.detach().requires_grad_() for x in (q, k, v, bias))
    return torch.autograd.grad(_attention(*leaves[:3], mask, leaves[3], causal), leaves, g)


_SECOND = "its derivatives are second derivatives of the attention, compared as such"


def _pulled_back(sizes: tuple[Any, ...], operands: Callable[..., Arrays]) -> tuple[Case, ...]:
    return tuple(
        Case(f"{size} {causal}", operands(*size, causal), {"causal": causal}, terms=4 * max(size[1:5]))
        for size in sizes
        for causal in (False, True)
    )


def _multi_head_operands(batch: tuple[int, ...], n: int, d: int, mask: tuple[int, ...] | None) -> Arrays:
    def make(rng: Any) -> tuple[Any, ...]:
        weights = [rng.standard_normal((d, d)) / d**0.5 for _ in range(4)]
        allowed = None if mask is None else rng.random(mask) < 0.6
        if allowed is not None:
            allowed[..., 0] = True
        return (*weights, rng.standard_normal((*batch, n, d)), allowed)

    return make


def _multi_head(wq: Any, wk: Any, wv: Any, wo: Any, x: Any, mask: Any, num_heads: int, causal: bool) -> torch.Tensor:
    """torch.nn.MultiheadAttention's function, its weights ours transposed, its mask what to leave out."""
    n, d = x.shape[-2:]
    forbidden = torch.zeros(n, n, dtype=torch.bool) if mask is None else ~mask
    if causal:
        forbidden = forbidden | torch.ones(n, n, dtype=torch.bool).triu(1)
    if forbidden.ndim == 3:
        forbidden = forbidden.repeat_interleave(num_heads, 0)
    sequence_first = x.transpose(0, 1) if x.ndim == 3 else x
    out, _ = functional.multi_head_attention_forward(
        sequence_first, sequence_first, sequence_first, d, num_heads, None, None, None, None, False, 0.0, wo.t(), None,
        attn_mask=forbidden, need_weights=False, use_separate_proj_weight=True,
        q_proj_weight=wq.t(), k_proj_weight=wk.t(), v_proj_weight=wv.t(),
    )  # fmt: skip
    return out.transpose(0, 1) if x.ndim == 3 else out


TWINS: list[Twin] = [
    Twin(
        "scaled_dot_product_attention",
        _attention,
        (*_cases(), Case("nothing to attend to", _hopeless, {"causal": False}, terms=8, edge=True)),
    ),
    Twin(
        "scaled_dot_product_attention",
        _attention,
        (
            *(
                Case(
                    f"bias {size} {causal} {scale}",
                    _biased_operands(*size),
                    {"causal": causal, "scale": scale},
                    terms=2 * max(size[1:5]),
                    edge=_shifts_rows(size[5]),
                )
                for size in _BIASES
                for causal, scale in ((False, None), (True, 0.3), (False, 2.0))
            ),
            Case("scale", _operands((2,), 5, 7, 4, 3, None), {"causal": True, "scale": 0.7}, terms=14),
        ),
    ),
    Twin("biased_attention_grad", _biased_grad, _pulled_back(_BIASES, _biased_grad_operands), gradient=_SECOND),
    Twin("scaled_dot_product_attention_grad", _attention_grad, _pulled_back(_SIZES, _grad_operands), gradient=_SECOND),
    Twin(
        "multi_head_attention",
        _multi_head,
        tuple(
            Case(
                f"{batch} {n} {d} heads={heads} {mask} {causal}",
                _multi_head_operands(batch, n, d, mask),
                {"num_heads": heads, "causal": causal},
                terms=8 * d,
            )
            for batch, n, d in (((), 5, 6), ((3,), 5, 6), ((2,), 12, 16))
            for heads in (1, 2)
            for mask in (None, (n, n), (*batch, n, n))
            for causal in (False, True)
            if mask is None or mask == (n, n) or batch
        ),
    ),
]


# Recurrent layers, the CTC loss ---------------------------------------------------------------------------------------

_NAMES = ("input", "recurrent", "bias", "recurrent_bias")
_GATES = {"rnn": 1, "gru": 3, "lstm": 4}
_LENGTHS = fixed([6, 2, 4])


def _weights(gates: int) -> Arrays:
    return both(normal((gates * 4, 3)), normal((gates * 4, 4)), normal((gates * 4,)), normal((gates * 4,)))


def _arrays(name: str) -> Arrays:
    """x of six steps, three sequences and three inputs; the parameters of both directions; lengths."""
    return both(normal((6, 3, 3)), _weights(_GATES[name]), _weights(_GATES[name]), _LENGTHS)


def _theirs(name: str) -> Any:
    def call(x: torch.Tensor, *given: torch.Tensor, lengths: bool) -> torch.Tensor:
        """The outputs and the last hidden states, stacked."""
        *weights, counts = given
        layer = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[name]
        module = layer(3, 4, bidirectional=True).to(x.dtype)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, counts.cpu(), enforce_sorted=False) if lengths else x
        names = [
            f"{kind}_l0{end}" for end in ("", "_reverse") for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]
        # cuDNN rounds to TF32 also where that is not allowed: 3e-4 from float64, with PyTorch 2.11 on an H100
        with torch.backends.cudnn.flags(enabled=False):
            y, last = torch.func.functional_call(module, dict(zip(names, weights)), (packed,))
        if lengths:
            y, _ = torch.nn.utils.rnn.pad_packed_sequence(y)
        last = last[0] if isinstance(last, tuple) else last
        return torch.cat([y.reshape(-1, 4), last.reshape(-1, 4)])

    return call


def _ours(name: str) -> Any:
    def call(ops: Any, x: Any, *given: Any, lengths: bool) -> Any:
        forward, backward = (dict(zip(_NAMES, given[i : i + 4])) for i in (0, 4))
        layer = getattr(derived, name)
        counts = given[8] if lengths else None
        y, lasts = derived.bidirectional(ops, layer, x, forward, backward, lengths=counts)
        hidden = [last[0] if isinstance(last, tuple) else last for last in lasts]
        return ops.concat([ops.reshape(y, shape=(-1, 4)), *hidden])

    return call


def _ctc(x: torch.Tensor, targets: torch.Tensor, steps: torch.Tensor, labels: torch.Tensor, **static: Any) -> Any:
    return functional.ctc_loss(x.log_softmax(2), targets, steps, labels, **static)


def _our_ctc(ops: Any, x: Any, *given: Any, **static: Any) -> Any:
    return derived.ctc_loss(ops, ops.log_softmax(x), *given, **static)


_SEQUENCES = both(normal((12, 4, 5)), integers(1, 5, (4, 3)), fixed([12, 9, 7, 3]), fixed([3, 2, 0, 1]))

TWINS += [
    *(
        Twin(
            f"derived.{name}",
            _theirs(name),
            tuple(Case(f"{what}", _arrays(name), {"lengths": lengths}, terms=30)
                  for what, lengths in (("both directions", False), ("lengths", True))),
            call=_ours(name),
        )
        for name in _GATES
    ),
    Twin(
        "derived.ctc_loss",
        _ctc,
        tuple(Case(reduction, _SEQUENCES, {"reduction": reduction}, terms=40) for reduction in ("none", "sum", "mean")),
        call=_our_ctc,
    ),
]  # fmt: skip
