"""Recurrent cells of PyTorch and Opstage: the same rows in the same order, but PyTorch has two biases that sum to ours.

The rows are the gates input, forget, candidate, output in `torch.nn.LSTM` and in `opstage.models.lstm` alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_SIDES = {"ih": "input", "hh": "recurrent"}
_MODULE = re.compile(r"(.*?)\.?\b(ih|hh)((?:_l\d+)?(?:_reverse)?)")


def cell_and_side(module: str) -> tuple[str, str] | None:
    """`lstm.hh_l0`, from `lstm.weight_hh_l0`, -> (`lstm_l0`, `recurrent`); None if it is not part of a cell."""
    match = _MODULE.fullmatch(module)
    return None if match is None else (match[1] + match[3], _SIDES[match[2]])


def pytorch_cells(values: Mapping[str, Array]) -> dict[str, Array]:
    """Return the values with each cell (`input`, `recurrent`, `bias`) as `torch.nn.LSTM` stores it; its second bias is
    0."""
    found: dict[str, Array] = {}
    for path, array in values.items():
        prefix, last = _split(path)
        if not _is_cell(values, prefix):
            found[path] = array
        elif last == "bias":
            found[f"{prefix}bias_ih_l0"], found[f"{prefix}bias_hh_l0"] = array, np.zeros_like(array)
        elif last in _SIDES.values():
            found[f"{prefix}weight_{'ih' if last == 'input' else 'hh'}_l0"] = array
        else:
            found[path] = array
    return found


def _split(path: str) -> tuple[str, str]:
    head, dot, last = path.rpartition(".")
    return head + dot, last


def _is_cell(values: Mapping[str, Array], prefix: str) -> bool:
    parts = [values.get(f"{prefix}{name}") for name in ("input", "recurrent", "bias")]
    rows = {part.shape[0] if part is not None and part.ndim else None for part in parts}
    return len(rows) == 1 and None not in rows
