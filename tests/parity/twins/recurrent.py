"""Twins: the recurrent layers and the CTC loss of opstage.ops.derived."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from opstage.ops import derived
from tests.parity.twin import Arrays, Case, Twin, both, fixed, integers, normal

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

TWINS: list[Twin] = [
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
