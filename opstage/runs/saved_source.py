"""source/: copies of the user's files that define a run's model, from which the run is loaded again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..ops.errors import UsageError
from ..ops.untrusted import brief
from ..tensors import read_bytes
from ..written_files import late_import, source_root
from .directory import RUN, SOURCE, RunDirectory
from .versions import run_document

if TYPE_CHECKING:
    from .definition import Definition


_FILES = "source"


def keep_source(directory: RunDirectory, defined: Definition) -> dict[str, str]:
    """Write the model's files to source/; return the SHA-256 of each, by its path there. Empty for a shipped model."""
    digests: dict[str, str] = {}
    late = None if defined.file is None else late_import(next(iter(defined.texts)))
    if late is not None:
        raise UsageError(
            f"{late[0]}:{late[1]}: imports a file beside it when a function is called, and a run that is loaded from "
            "its own copies would then take another one; move the import to the top of the file"
        )
    for name, text in _named(defined).items():
        directory.write(f"{SOURCE}/{name}", text)
        digests[name] = hashlib.sha256(text).hexdigest()
    return digests


def kept_file(directory: Path) -> Path | None:
    """Return the copy of the model's file in the run in `directory`, or None if its model has no file.

    Raises UsageError if a copy is missing or has changed.
    """
    digests = _digests(directory)
    for name, digest in digests.items():
        path = directory / SOURCE / name
        if not path.is_file():
            raise UsageError(f"{path}: is missing; the run in {directory} is one of a model that is made of it")
        if hashlib.sha256(read_bytes(path)).hexdigest() != digest:
            raise UsageError(
                f"{path}: has changed since the run was started: {directory} holds the parameters of what it was; "
                "restore it from a copy"
            )
    return directory / SOURCE / next(iter(digests)) if digests else None


def changes(directory: Path, defined: Definition) -> list[str]:
    """Return the files, by their original paths, that are gone or have changed since the run in `directory` kept
    them."""
    digests = _digests(directory)
    if not digests or defined.file is None:
        return []
    root, first = defined.file.absolute(), next(iter(digests))
    for _ in Path(first).parts:
        root = root.parent
    return [
        str(root / name)
        for name, digest in digests.items()
        if not (root / name).is_file() or hashlib.sha256(read_bytes(root / name)).hexdigest() != digest
    ]


def _named(defined: Definition) -> Mapping[str, bytes]:
    """Return the contents of the model's files, its own first, by path relative to the root of its imports."""
    if defined.file is None:
        return {}
    root = source_root(next(iter(defined.texts)))
    return {path.relative_to(root).as_posix(): text for path, text in defined.texts.items()}


def _digests(directory: Path) -> dict[str, str]:
    path = directory / RUN
    if not path.is_file():
        return {}
    held = run_document(path).get(_FILES)
    digests = {} if held is None else {name: digest.text() for name, digest in held.items()}
    for name in digests:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise UsageError(f"{path}: names a file outside the run: {brief(name)}; restore it from a copy")
    return digests
