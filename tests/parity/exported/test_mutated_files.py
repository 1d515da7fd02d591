"""Files of torch.export.save with one entry of their graph changed: refused, or with the numbers that PyTorch has.

python -m tests.parity.exported.test_mutated_files 0 2000 tries other seeds.
"""

from __future__ import annotations

import copy
import io
import json
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import optree
import pytest
import torch

import opstage
import opstage.torch
from opstage.ops.errors import OpstageError

X = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
HUGE = (2**31, 2**63)


class Net(torch.nn.Module):
    """Convolution, pooling, slices, a linear layer, softmax, sums along an axis, integers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.linear = torch.nn.Linear(64, 5)

    def forward(self, x: Any) -> Any:
        y = torch.nn.functional.max_pool2d(torch.relu(self.conv(x)), 2, 1, 1)[:, :, :4, :4].flatten(1)
        y = torch.softmax(self.linear(y), -1)
        return torch.cat([y, y.cumsum(1)], 1).transpose(0, 1).sum(0, keepdim=True) * 2, y.argmax(1)


@cache
def saved() -> tuple[dict[str, bytes], str]:
    """The entries of a saved program, and the name of its graph's."""
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=2, max=8)
    program = torch.export.export(Net().eval(), (torch.from_numpy(X),), dynamic_shapes=({0: batch},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    with zipfile.ZipFile(buffer) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    return entries, next(name for name in entries if "/models/" in name and name.endswith(".json"))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every number, text, truth and None of a JSON document, with the keys that lead to it."""
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path, value


def mutated(seed: int) -> tuple[bytes, str]:
    """The file with one entry of its graph changed or gone, and which."""
    rng = np.random.default_rng(seed)
    entries, name = saved()
    document = json.loads(entries[name])
    places = [pair for pair in leaves(document) if pair[0][0] in ("graph_module", "range_constraints")]
    path, value = places[rng.integers(len(places))]
    inside = document
    for key in path[:-1]:
        inside = inside[key]
    alike = [other for _, other in places if type(other) is type(value) and other != value]
    new: Any = None
    kind = rng.integers(4)
    if kind == 0 and alike:
        new = alike[rng.integers(len(alike))]
    elif kind == 1 and not isinstance(value, bool):
        del inside[path[-1]]
    elif isinstance(value, bool):
        new = not value
    elif isinstance(value, int):
        new = [0, -1, value + 1, value - 1, *HUGE][rng.integers(6)]
    elif isinstance(value, str) and alike:
        new = alike[rng.integers(len(alike))]
    if not (kind == 1 and not isinstance(value, bool)):
        inside[path[-1]] = copy.deepcopy(new)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for each, data in entries.items():
            archive.writestr(each, json.dumps(document) if each == name else data)
    return out.getvalue(), f"seed {seed}: {'.'.join(map(str, path))} = {value!r} -> {new!r}"


def outcome(data: bytes) -> str:
    """How it ends here: refused, too large, without PyTorch, the same; all else is a difference."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "net.pt2")
        file.write_bytes(data)
        try:
            model = opstage.torch.load(file)
            found = optree.tree_leaves(opstage.run(model, model.params, X))
        except OpstageError:
            return "refused"
        except MemoryError:
            return "too large"
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = torch.export.load(io.BytesIO(data)).module()(torch.from_numpy(X))
    except Exception as error:  # torch's own, of whichever kind
        return f"ran here, but not in PyTorch: {error}"
    expected = [tensor.numpy() for tensor in torch.utils._pytree.tree_leaves(result)]
    same = len(found) == len(expected) and all(
        a.shape == e.shape and np.allclose(a, e, rtol=1e-4, atol=1e-5) for a, e in zip(found, expected)
    )
    return "the same" if same else "other numbers"


def differences(seeds: range) -> list[str]:
    found = ((outcome(data), what) for data, what in map(mutated, seeds))
    return [f"{what}: {how}" for how, what in found if how not in ("refused", "too large", "the same")]


@pytest.mark.parametrize("first", range(0, 100, 50))
def test_a_changed_graph_is_refused_or_has_pytorch_s_numbers(first: int) -> None:
    assert not (found := differences(range(first, first + 50))), "\n".join(found)


if __name__ == "__main__":
    print("\n".join(differences(range(*map(int, sys.argv[1:])))))
