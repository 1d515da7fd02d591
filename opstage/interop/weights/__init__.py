"""Import and export of other libraries' weights: safetensors files, mapped by names and shapes.

PyTorch writes and reads such files by `safetensors.torch.save_file(model.state_dict(), …)` and `load_file`. Hugging
Face's libraries write weights in several files, with an index. `model.safetensors.index.json` holds `weight_map`, the
file of each tensor: `{"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors", …}}`. Weights that one file
holds are `model.safetensors`, without an index. Source: huggingface.co/docs/transformers/big_models.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ...files import DISK, Disk, Document, WriteError, require_file, write_file
from ...ops.array_conversion import as_numpy
from ...ops.errors import UsageError, brief, shown
from ...ops.readable_amounts import parse_bytes
from ...safetensors_files import HEADER_LIMIT, decode, decode_metadata, encode, map_tensors, read_bytes
from ...training.snapshot import TrainerValues
from ...training.trainer import ScalarTrainer
from .mapping import (
    Array,
    MappedParameter,
    Source,
    WeightMap,
    names_by_path,
    pytorch_cells,
    pytorch_name,
    read_named,
    write_named,
)
from .proposal import everywhere, propose, propose_tied, shared_as_in, stored_once, with_dropped_names

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
__dir__ = __all__.copy


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


# Weights in several files ---------------------------------------------------------------------------------------------

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_SIZE = "5GB"


def read_weights(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the tensors of a folder of weights, an index file or a safetensors file by name, memory-mapped and
    read-only.

    A folder holds `model.safetensors.index.json` or `model.safetensors`. bfloat16 is widened to float32, which copies.
    Raises UsageError for a file that is not an index, names a file outside its own folder, or does not map each tensor
    to exactly one file. Nothing outside the folder is read, except through the links of Hugging Face's cache.
    """
    path = Path(path)
    if os.path.isdir(path):
        found = [path / name for name in (INDEX, SINGLE) if os.path.isfile(path / name)]
        if not found:
            raise UsageError(f"{path}: holds no weights; expected {INDEX} or {SINGLE} in it")
        path = found[0]
    if path.suffix == ".json":
        return _read_sharded(path)
    return with_dropped_names(*map_tensors(path))


def read_config(folder: str | os.PathLike[str]) -> Document:
    """Return the `config.json` next to a model's weights; its values are type-checked when read."""
    path = Path(folder) / "config.json"
    return Document.of(read_bytes(path), str(path))


def write_weights(
    folder: str | os.PathLike[str],
    tensors: Mapping[str, Array],
    *,
    shard_size: int | str = SHARD_SIZE,
    disk: Disk = DISK,
) -> list[Path]:
    """Write weights to a new folder, in files of at most `shard_size` each and an index; return the files, the index
    last.

    If all fits into one file, that is `model.safetensors` without an index. A tensor larger than `shard_size` has a
    file of its own. One array under several names is stored once, as in `write_state_dict`. The folder appears with all
    its files or not at all. Raises UsageError if it exists and is not empty, and WriteError.
    """
    folder = Path(os.path.abspath(folder))
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"{folder}: is there already; weights are written to a new folder, or to an empty one")
    kept, others = stored_once(tensors)
    shards = _shards(kept, parse_bytes(shard_size))
    names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = [SINGLE]
    files = {}
    for name, shard in zip(names, shards):
        dropped = {other: stored for other, stored in others.items() if stored in shard}
        files[name] = (shard, {**dropped, "format": "pt"})
    index = {name: file for file, (shard, _) in files.items() for name in shard}
    size = sum(array.nbytes for array in kept.values())
    listed = json.dumps({"metadata": {"total_size": size}, "weight_map": dict(sorted(index.items()))}, indent=2)

    temporary = folder.with_name(f".{folder.name[:50]}.{secrets.token_hex(8)}.tmp")
    made: list[Path] = []
    try:
        disk.make_folder(temporary)
        for name, (shard, metadata) in files.items():
            made.append(temporary / name)
            write_file(made[-1], [encode(shard, metadata)], disk=disk)
        if len(files) > 1:
            made.append(temporary / INDEX)
            write_file(made[-1], [listed.encode()], disk=disk)
        disk.rename(temporary, folder)
    except BaseException as error:
        for path in made:
            with suppress(OSError):
                disk.remove(path)
        with suppress(OSError):
            temporary.rmdir()
        if isinstance(error, (OSError, WriteError)):
            reason = error if isinstance(error, OSError) else error.__cause__
            raise WriteError(folder, reason if isinstance(reason, OSError) else OSError(str(error))) from error
        raise
    try:
        disk.sync_folder(folder.parent)
    except OSError as error:
        raise WriteError(folder, error, replaced=True) from error
    return [folder / path.name for path in made]


def _shards(tensors: Mapping[str, Array], most: int) -> list[dict[str, Array]]:
    """Split the tensors, in order, into parts of at most `most` bytes or of one tensor."""
    shards: list[dict[str, Array]] = [{}]
    size = 0
    for name, array in tensors.items():
        if shards[-1] and size + array.nbytes > most:
            shards.append({})
            size = 0
        shards[-1][name] = array
        size += array.nbytes
    return shards


def _read_sharded(path: Path) -> dict[str, Array]:
    index = _read_index(path)
    files = sorted(set(index.values()))
    for name in files:
        _require_inside(path, name)
    if missing := [name for name in files if not os.path.isfile(path.parent / name)]:
        raise UsageError(f"{path}: names files that are not in its folder: {shown(missing)}")
    found: dict[str, Array] = {}
    places: dict[str, str] = {}
    for file in files:
        tensors, metadata = map_tensors(path.parent / file)
        named = with_dropped_names(tensors, metadata)
        if twice := [name for name in tensors if name in places]:
            raise UsageError(f"{path}: {brief(twice[0])} is in two files, {places[twice[0]]} and {file}")
        places |= dict.fromkeys(tensors, file)
        own = [name for name, where in index.items() if where == file]
        if absent := [name for name in own if name not in named]:
            raise UsageError(f"{path}: {file} does not hold what the index says it does: {shown(absent)}")
        if more := [name for name in tensors if name not in index]:
            raise UsageError(f"{path}: {file} holds tensors that the index does not list: {shown(more)}")
        for name, array in named.items():
            found.setdefault(name, array)
    return dict(sorted(found.items()))


def _read_index(path: Path) -> dict[str, str]:
    """Return the file of each tensor. Raises UsageError if the file is not an index."""
    require_file(path)
    try:
        with open(path, "rb") as file:
            data = file.read(HEADER_LIMIT + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) > HEADER_LIMIT:
        raise UsageError(f"{path}: is too long for an index: {HEADER_LIMIT:,} bytes are allowed")
    try:
        document = json.loads(data, object_pairs_hook=_unique)
    except _TwiceError as error:
        raise UsageError(f"{path}: not an index of weights: {brief(error.name)} is in it twice") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not an index of weights: it is not JSON") from error
    files = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise UsageError(f'{path}: not an index of weights: expected "weight_map", an object of a file for each tensor')
    if not files:
        raise UsageError(f"{path}: an index of no weights: its weight_map is empty")
    return files


class _TwiceError(ValueError):
    def __init__(self, name: str):
        super().__init__(name)
        self.name = name


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, checked for duplicate keys, of which Python would keep the last."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _TwiceError(name)
        found[name] = value
    return found


def _require_inside(index: Path, name: str) -> None:
    """Raise UsageError unless `name` is the name of a file in the folder of the index.

    In Hugging Face's cache `snapshots/REVISION/NAME` is a link to a file in `blobs/`, which belongs to the same folder.
    """
    plain = name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0", ":"}
    if not plain or not name.endswith(".safetensors"):
        raise UsageError(
            f"{index}: names the file {brief(name)}; expected the name of a .safetensors file in the index's own folder"
        )
    folder = index.parent.resolve()
    try:
        target = (index.parent / name).resolve()
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{index}: names the file {brief(name)}, which cannot be found: {error}") from error
    allowed = [folder]
    if folder.parent.name == "snapshots":
        allowed.append(folder.parent.parent / "blobs")
    if target.parent not in allowed:
        raise UsageError(f"{index}: names the file {brief(name)}, a link to a file that is not in the index's folder")
