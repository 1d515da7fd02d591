"""Machine code in a file: the content and its digest, so that a damaged file is detected and compiled again.

It is written under a random name and renamed, so that two processes may write one file, and no reader sees a partial
one. A file that another user owns or could have changed is not read; links are not followed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from .bound import note_written
from .folder import Unsafe, opened, require_ours

_log = logging.getLogger(__name__)
_DIGEST_BYTES = 32
_OPEN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def _digest(key: str, code: bytes) -> bytes:
    """Hash the key too: code under another key's name is damage as well."""
    return hashlib.sha256(key.encode() + code).digest()


def read_kept(path: Path, key: str) -> bytes | None:
    """Return the code stored at `path` under `key`; None if it is missing or damaged."""
    try:
        with opened(path.parent) as folder:
            kept = _content(path, folder)
    except FileNotFoundError:
        return None
    except (OSError, Unsafe) as error:
        _log.debug("kept kernel %s is not read and will be compiled again: %s", path, error)
        return None
    digest, code = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
    if _digest(key, code) != digest:
        _log.debug("kept kernel %s is damaged and will be compiled again", path)
        return None
    return code


def _content(path: Path, folder: int | None) -> bytes:
    name = path if folder is None else path.name
    descriptor = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _OPEN, dir_fd=folder)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Unsafe(f"{path} is not a file")
        require_ours(status, path)
        if os.utime in os.supports_fd:
            with suppress(OSError):
                os.utime(descriptor)  # the least recently used files are removed first
        return file.read()


def write_kept(path: Path, key: str, code: bytes) -> None:
    """Store the code; if the disk is full or read-only, the next process compiles it again."""
    try:
        with opened(path.parent) as folder:
            temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
            _replace(path, temporary, _digest(key, code) + code, folder)
    except (OSError, Unsafe) as error:
        _log.debug("kernel not kept at %s: %s", path, error)
    else:
        note_written(path.parent, _DIGEST_BYTES + len(code))


def _replace(path: Path, temporary: Path, content: bytes, folder: int | None) -> None:
    old, new = (temporary, path) if folder is None else (Path(temporary.name), Path(path.name))
    descriptor = os.open(old, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(old, new, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(old, dir_fd=folder)
        raise
