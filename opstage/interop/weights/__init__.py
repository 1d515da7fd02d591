"""Import and export of other libraries' weights: safetensors files, mapped by names and shapes.

PyTorch writes and reads such files by `safetensors.torch.save_file(model.state_dict(), …)` and `load_file`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...atomic import write_file
from ...ops.arrays import as_numpy
from ...ops.errors import UsageError
from ...tensors import decode, decode_metadata, encode, read_bytes
from ...training.saved import TrainerValues
from ...training.trainer import ScalarTrainer
from .mapping import Array, MappedParameter, Source, WeightMap, pytorch_cells
from .names import names_by_path, pytorch_name, read_named, write_named
from .proposal import everywhere, propose, propose_tied, shared_as_in, stored_once, with_dropped_names
from .shards import read_config, read_weights, write_weights

__all__ = [
    "MappedParameter",
    "Source",
    "WeightMap",
    "export_weights",
    "import_weights",
    "names_by_path",
    "propose",
    "propose_for",
    "pytorch_names",
    "read_config",
    "read_named",
    "read_state_dict",
    "read_weights",
    "write_named",
    "write_state_dict",
    "write_weights",
]


def read_state_dict(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the tensors of a safetensors file by name. Raises UsageError for a file that is not one.

    For a folder of weights, or the index of several files, the tensors of all files are memory-mapped: see
    `read_weights`. A tensor that two layers share, for which `safetensors.torch.save_model` keeps the second name in
    the metadata, is one array under both names.
    """
    if os.path.isdir(path) or Path(path).suffix == ".json":
        return read_weights(path)
    data = read_bytes(Path(path))
    return with_dropped_names(decode(data, path), decode_metadata(data, path))


def write_state_dict(path: str | os.PathLike[str], tensors: Mapping[str, Array]) -> None:
    """Write a safetensors file atomically.

    One array under several names is stored once, under the first of them; the others are kept in the metadata, as
    `safetensors.torch.load_model` and `read_state_dict` read them.
    """
    kept, names = stored_once({name: as_numpy(array) for name, array in tensors.items()})
    write_file(Path(path), [encode(kept, {**names, "format": "pt"})])


def propose_for(
    values: TrainerValues, tensors: Mapping[str, Array], overrides: Mapping[str, str] | None = None
) -> WeightMap:
    """Propose a source among `tensors` for each parameter and running statistic, or a reason why not; see `propose`.

    A parameter at several places has one row, under its name, and can match by the name of any of its places.
    """
    shapes = {path: array.shape for path, array in _all(values).items()}
    return propose_tied(shapes, values.tied, tensors, overrides or {})


def import_weights(
    trainer: ScalarTrainer, tensors: Mapping[str, Array], overrides: Mapping[str, str] | None = None
) -> WeightMap:
    """Load `tensors` into the trainer, cast to its dtype, and return the map that was used.

    Raises UsageError, and changes nothing, if a parameter has no source or a tensor is unused.
    """
    before = trainer.export()
    chosen = propose_for(before, tensors, overrides)
    chosen.require_complete("the file")
    read = chosen.read(tensors)
    trainer.restore(
        TrainerValues(
            {path: _cast(path, read[path], old) for path, old in before.params.items()},
            {path: _cast(path, read[path], old) for path, old in before.state.items()},
            before.steps_taken,
            before.moments,
        )
    )
    return chosen


def export_weights(
    values: TrainerValues, like: Mapping[str, Array] | None = None, overrides: Mapping[str, str] | None = None
) -> dict[str, Array]:
    """Return parameters and running statistics as a state_dict: built like `like`, or else under PyTorch's usual names.

    A parameter at several places is one array under the names of all of them.
    """
    everything = _all(values)
    if like is None:
        return pytorch_names(everywhere(everything, values.tied))
    chosen = propose_for(values, like, overrides)
    chosen.require_complete("the file to be like")
    written = chosen.write(everything, like)
    used = {name for row in chosen.rows if row.source is not None for name in row.source.names}
    for name in like:  # a tensor that two layers share is stored twice
        if name not in used:
            twin = next(
                (n for n in used if like[n].shape == like[name].shape and np.array_equal(like[n], like[name])), ""
            )
            written[name] = written[twin].copy() if twin else written[name]
    return shared_as_in(written, like)


def pytorch_names(values: Mapping[str, Array]) -> dict[str, Array]:
    """Return the values under the names of PyTorch's layers: weight, bias, running_mean, running_var, weight_ih_l0."""
    given = pytorch_cells(values)
    renamed = {pytorch_name(path): array for path, array in given.items()}
    if len(renamed) != len(given):
        raise UsageError("two parameters would have one name in PyTorch; export them like a file of that model")
    return renamed


def _all(values: TrainerValues) -> dict[str, Array]:
    twice = sorted(set(values.params) & set(values.state))
    if twice:
        raise UsageError(f"{twice[0]} is the path of a parameter and of a running statistic; rename one")
    return {**values.params, **values.state}


def _cast(path: str, array: Array, old: Array) -> Array:
    if array.dtype.kind != old.dtype.kind:
        raise UsageError(f"{path}: the file holds {array.dtype} values; expected {old.dtype}")
    return array.astype(old.dtype)
