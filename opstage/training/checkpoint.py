"""Checkpoints: a training run at a step boundary, saved whole or not at all.

A checkpoint is a folder with two files: `checkpoint.json`, the manifest, and the tensors file that it names, in the
safetensors format. The tensors file is named by its own checksum, so a save never writes over the one in use; the
rename of the manifest is the moment at which the new checkpoint takes the place of the old. Both files carry SHA-256
checksums, and nothing in them can run code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..files import DISK, TEMPORARY, Disk, Document, make_folder, write_file
from ..ops.errors import UsageError, a_type
from ..optim import Optimizer
from ..safetensors_files import decode, file_size, in_order, map_tensors, read_bytes, stream
from .callback import Callback, require_restorable
from .finite import require_finite_values
from .snapshot import Array, Snapshot, from_document, take_snapshot, to_document
from .state import OptimizerState
from .trainer import ScalarTrainer

MANIFEST = "checkpoint.json"
FORMAT = "opstage checkpoint"
VERSION = 1

_TENSORS = re.compile(r"tensors-[0-9a-f]{64}\.safetensors")
_BEGINNINGS = ("tensors-", MANIFEST)
_UNFINISHED = "tensors-unfinished.safetensors"

__all__ = ["MANIFEST", "Snapshot", "exists", "load", "restore", "save", "take_snapshot", "tensors_file"]
__dir__ = __all__.copy


def exists(directory: str | os.PathLike[str]) -> bool:
    """Return whether `directory` holds a checkpoint; `load` says whether it is valid."""
    return os.path.isfile(Path(directory) / MANIFEST)


def tensors_file(directory: str | os.PathLike[str]) -> Path:
    """Return the safetensors file of the checkpoint in `directory`, as named by its manifest. Raises UsageError."""
    folder = Path(directory)
    return folder / str(_read_manifest(folder)["tensors"]["file"])


def save(
    directory: str | os.PathLike[str] | None, snapshot: Snapshot, *, disk: Disk = DISK, require_finite: bool = True
) -> None:
    """Write `snapshot` to `directory`, creating it if needed, and replace the checkpoint that is there.

    Tensors are read one at a time. If they are sharded over the ranks of several processes, all processes save
    together; those that do not write pass None for the directory.

    With `require_finite`, raises NotFiniteError if parameters, state or moments are not all finite; the existing
    checkpoint stays.

    Whatever fails, even power, a later `load` returns either the old checkpoint or the new one, complete. Raises
    UsageError if the folder cannot be written, the disk is full or the config is not JSON.

    Raises:
        UsageError: something other than a snapshot; a folder that cannot be written.
        NotFiniteError: numbers that are not finite.
    """
    if not isinstance(snapshot, Snapshot):
        raise UsageError(f"save takes the snapshot that take_snapshot gives, not {a_type(snapshot)}")
    if require_finite:
        require_finite_values(snapshot.trainer, snapshot.optimizer)
    tensors, document = to_document(snapshot)
    left = [name for name in in_order(tensors) if getattr(tensors[name], "joins", False)]

    def read(name: str) -> Array:
        if left and left[0] == name:
            left.pop(0)
        return np.asarray(tensors[name])

    try:
        if directory is not None:
            _write(Path(directory), tensors, read, document, disk)
        while left:
            read(left[0])
    except UsageError:
        while left:  # the other processes still read their parts together with this one
            read(left[0])
        raise


def _write(
    folder: Path, tensors: Mapping[str, Array], read: Callable[[str], Array], document: dict[str, Any], disk: Disk
) -> None:
    _json(document)  # raises for an invalid document before anything is written
    make_folder(folder, disk=disk)
    digest, count, name, was_there = hashlib.sha256(), 0, "", True

    def pieces() -> Iterator[bytes | memoryview]:
        nonlocal count
        for piece in stream(tensors, read):
            digest.update(piece)
            count += len(piece)
            yield piece

    def called() -> Path:
        nonlocal name, was_there
        name = f"tensors-{digest.hexdigest()}.safetensors"
        was_there = (folder / name).exists()
        return folder / name

    try:
        write_file(folder / _UNFINISHED, pieces(), disk=disk, called=called)
        told = {"file": name, "bytes": count, "sha256": digest.hexdigest()}
        document = {"format": FORMAT, "format_version": VERSION, "tensors": told, **document}
        write_file(folder / MANIFEST, [_json({**document, "sha256": _checksum(document)})], disk=disk)
    except BaseException:
        if not was_there:
            _remove_unused(folder, name, disk)
        raise
    _remove_others(folder, name, disk)


def _json(document: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(document, indent=1).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"the config of a checkpoint must be plain JSON data: {error}") from error


def load(directory: str | os.PathLike[str], *, mapped: bool = False, verify: bool = True) -> Snapshot:
    """Load the checkpoint in `directory`.

    With `mapped`, tensors are memory-mapped and read when used: of sharded parameters only the shards of this process.
    If several processes load one checkpoint, one of them may `verify` its checksum for all.

    Raises UsageError, naming the file, if it is missing, truncated, altered or not Opstage's.

    Raises:
        UsageError: no checkpoint; a damaged one.
    """
    folder = Path(directory)
    while True:
        manifest = _read_manifest(folder)
        path = folder / manifest["tensors"]["file"]
        if path.is_file() or _read_manifest(folder) == manifest:
            break  # else a save replaced both files between the two reads
    expected = manifest["tensors"]
    data = None if mapped else read_bytes(path)
    size = len(data) if data is not None else file_size(path)
    if size < expected["bytes"]:
        raise UsageError(f"{path}: truncated: it has {size:,} of {expected['bytes']:,} bytes; {_ADVICE}")
    if size != expected["bytes"] or (verify and _digest(path, data) != expected["sha256"]):
        raise UsageError(f"{path}: altered: its checksum is not the one in {MANIFEST}; {_ADVICE}")
    tensors = map_tensors(path)[0] if data is None else decode(data, path)
    return from_document(tensors, Document(manifest, f"{folder / MANIFEST}: not a checkpoint of Opstage", _ADVICE))


def _digest(path: Path, data: bytes | None) -> str:
    """Return the checksum of a file's bytes, read from `data` if given."""
    if data is not None:
        return hashlib.sha256(data).hexdigest()
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error


def restore(
    trainer: ScalarTrainer,
    snapshot: Snapshot,
    optimizer: Optimizer | None = None,
    callbacks: Sequence[Callback] | None = None,
) -> OptimizerState | None:
    """Restore `trainer` from the snapshot, and return the state of `optimizer`, or None without an optimizer.

    Without `callbacks`, their states are ignored. Everything is checked before the trainer changes. Raises UsageError,
    with paths and shapes, if the snapshot has another model, dtype, optimizer or other callbacks.

    Raises:
        UsageError: something other than a snapshot; one of another model.
    """
    if not isinstance(snapshot, Snapshot):
        raise UsageError(f"restore takes the snapshot that load gives, not {a_type(snapshot)}")
    state = None
    if callbacks is not None:
        require_restorable(callbacks, snapshot.callbacks)
    if optimizer is not None:
        if snapshot.optimizer is None:
            raise UsageError("the checkpoint holds no optimizer state; start a new run from its parameters instead")
        state = trainer.import_optim(optimizer, snapshot.optimizer)
    for callback in callbacks or ():
        if callback.name:
            callback.restore(snapshot.callbacks[callback.name])
    trainer.restore(snapshot.trainer)
    return state


_ADVICE = "restore it from a copy, or use another checkpoint"


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not os.path.exists(path):
        what = "holds no checkpoint" if os.path.isdir(folder) else "no such folder"
        raise UsageError(f"{folder}: {what}; expected one with a file {MANIFEST}")
    what = f"{path}: truncated, altered or not a checkpoint of Opstage"
    document = Document.of(read_bytes(path), what, _ADVICE).value
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"{path}: not a checkpoint of Opstage: its format is not {FORMAT!r}")
    if document.get("format_version") != VERSION:
        raise UsageError(
            f"{path}: of format version {document.get('format_version')!r}; this Opstage reads version {VERSION}"
        )
    checksum = document.pop("sha256", None)
    if checksum != _checksum(document):
        raise UsageError(f"{path}: altered: its checksum does not hold; {_ADVICE}")
    tensors = document.get("tensors")
    if not (
        isinstance(tensors, dict)
        and type(tensors.get("bytes")) is int
        and isinstance(tensors.get("sha256"), str)
        and _TENSORS.fullmatch(str(tensors.get("file")))
    ):
        raise UsageError(f"{path}: not a checkpoint of Opstage: it names no tensors file")
    return document


def _checksum(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _remove_unused(folder: Path, name: str, disk: Disk) -> None:
    """Remove the tensors file of a failed save, unless the manifest names it after all."""
    with suppress(OSError):
        manifest = folder / MANIFEST
        if not manifest.exists() or name.encode() not in manifest.read_bytes():
            disk.remove(folder / name)


def _remove_others(folder: Path, name: str, disk: Disk) -> None:
    """Remove the files of earlier saves. One that cannot be removed is ignored."""
    with suppress(OSError):
        for path in folder.iterdir():
            unfinished = TEMPORARY.fullmatch(path.name)
            ours = _TENSORS.fullmatch(path.name) if unfinished is None else unfinished[1].startswith(_BEGINNINGS)
            if ours and path.name != name:
                with suppress(OSError):
                    disk.remove(path)
