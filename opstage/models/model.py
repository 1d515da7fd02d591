"""`Model`: a shipped model as one value, its config already in its functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..ops.spec import Spec


@dataclass(frozen=True)
class Model:
    """A model ready to be trained, checked or graphed.

    init      declarations of the parameters
    loss      (ops, params, *batch, train=) -> scalar; with `state`
              (ops, params, state, *batch, train=) -> (scalar, Aux)
    metrics   (ops, params, [state,] *batch) -> sums over the batch by name; a sum called `count` divides the others
              (default: the number of samples). Of a name that ends in `_l2` the root of that mean is reported
    batch     one Spec per batch argument, its batch size symbolic
    state     declarations of the state (running statistics), None for a model without
    """

    name: str
    config: Any
    init: Any
    loss: Callable[..., Any]
    metrics: Callable[..., Any]
    batch: tuple[Spec, ...]
    state: Any = None
