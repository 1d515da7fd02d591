"""Machine code in a file: a digest and what it is the digest of, so that a damaged file is noticed and made anew.

It is written under another name and renamed, so two processes may write one file, and no reader sees half of it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path

_log = logging.getLogger(__name__)
_DIGEST_BYTES = 32


def _digest(key: str, code: bytes) -> bytes:
    """Of the key too: code under another one's name is damage as well."""
    return hashlib.sha256(key.encode() + code).digest()


def read_kept(path: Path, key: str) -> bytes | None:
    """The code that was kept at `path` under `key`; None where there is none, or a damaged one."""
    try:
        kept = path.read_bytes()
    except OSError:
        return None
    digest, code = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
    if _digest(key, code) != digest:
        _log.debug("kept kernel %s is damaged and will be compiled again", path)
        return None
    return code


def write_kept(path: Path, key: str, code: bytes) -> None:
    """Keep the code; a disk that is full or read-only only means that the next process compiles it again."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
            try:
                file.write(_digest(key, code) + code)
                file.close()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        _log.debug("kernel not kept at %s: %s", path, error)
