"""The cache folder for machine code, and whether it can be trusted.

Cached code is executed, so a folder is used only if nobody but this user (and the superuser) could have written to it:
the user owns it, its mode is 0700, and no one else can rename or replace a folder above it.

It is in NUMBA_CACHE_DIR if that is set, else next to this file, else in the user's cache, and is named by the digest of
the environment. If none can be used, a warning says why and code is kept in memory only.
"""

from __future__ import annotations

import os
import stat
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from ...forks import make_lock
from .bound import limit
from .environment import environment

_HERE = Path(__file__).resolve().parent
_HAS_USERS = hasattr(os, "geteuid")

compiling = make_lock(waits_for_others=False)
"""Held while compiling: LLVM and numba have process-wide state."""


class Unsafe(Exception):
    """A folder that another user could write to."""


def cache_folder() -> Path | None:
    """Return the folder for machine code, created if needed; None, with a warning, if none can be used.

    None without a warning if the user disabled the cache by a limit of 0 bytes.
    """
    if limit() == 0:
        return None
    places = (os.environ.get(name) for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"))
    home = os.path.expanduser("~") if os.environ.get("HOME") != "" else ""  # it would be expanded to /
    return _cache_folder(os.geteuid() if _HAS_USERS else 0, home, *places)


@cache
def _cache_folder(user: int, home: str, chosen: str | None, caches: str | None) -> Path | None:
    """Do this for a user with home `home` and these two variables."""
    digest = environment()
    if not digest:
        bases, reasons = [], [f"the sources of Opstage, at {_HERE}, cannot be read"]
    elif chosen:
        bases, reasons = [Path(chosen)], []
    else:
        bases, reasons = [_HERE / "__pycache__"], []
        if caches and os.path.isabs(caches):  # "if relative, ignore it": the XDG Base Directory Specification
            bases.append(Path(caches))
        elif os.path.isabs(home) and os.path.isdir(home):  # one like /nonexistent must not be created
            bases.append(Path(home, ".cache"))
        else:
            reasons.append(f"there is no home folder {home!r}")
    for base in bases:
        folder = base / f"opstage-{digest[:16]}"
        try:
            return _prepared(folder)
        except OSError as error:
            reasons.append(f"{folder} cannot be written to ({error.strerror})")
        except Unsafe as error:
            reasons.append(str(error))
    warnings.warn(
        f"compiled kernels cannot be kept on disk: {'; '.join(reasons)}. Every process will compile them again. "
        "Set NUMBA_CACHE_DIR to a folder that belongs to you and that nobody else can write to, or use "
        "Options(fast_kernels=False)",
        stacklevel=3,
    )
    return None


def _prepared(folder: Path) -> Path:
    """Return the real path of the folder, created if needed, and checked to be writable. Raises OSError, Unsafe."""
    if not folder.is_absolute():
        raise Unsafe(f"{folder.parent} is not an absolute path")
    missing = []
    there = folder
    while not os.path.lexists(there):
        missing.append(there)
        there = there.parent
    require_ours_alone_above(there if missing else there.parent)
    for place in reversed(missing):
        with suppress(FileExistsError):
            place.mkdir(0o700)
    real = Path(os.path.realpath(folder.parent), folder.name)
    require_ours_alone_above(real.parent)
    with opened(real) as descriptor:
        if descriptor is not None:
            os.chmod(descriptor, 0o700)
    tempfile.TemporaryFile(dir=real).close()
    return real


def require_ours_alone_above(folder: Path) -> None:
    """Raise Unsafe if another user could replace an entry of `folder`.

    They could if they own a folder above, can write to one that is not sticky, or own a link on the path.
    """
    if not _HAS_USERS:
        return
    for place in (folder, *folder.parents):
        status = os.lstat(place)
        if stat.S_ISLNK(status.st_mode):
            _require_owner(place, status, "is a link that")
    real = Path(os.path.realpath(folder))
    for place in (real, *real.parents):
        status = os.stat(place)
        _require_owner(place, status, "")
        if _writable_by_others(status) and not status.st_mode & stat.S_ISVTX:
            raise Unsafe(f"{place} can be written to by others")


def _require_owner(place: Path, status: os.stat_result, what: str) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise Unsafe(f"{place} {what} belongs to another user ({status.st_uid})".replace("  ", " "))


def _writable_by_others(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_own_group(status.st_gid)


def _is_own_group(group: int) -> bool:
    """Whether the group contains only this user, with the same name, as many systems set up."""
    import grp
    import pwd

    try:
        user, named = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return named.gr_gid == user.pw_gid and named.gr_name == user.pw_name and set(named.gr_mem) <= {user.pw_name}


@contextmanager
def opened(folder: Path) -> Iterator[int | None]:
    """Open a folder of this user that others cannot write to, and yield a descriptor; None on systems without users.

    The checks apply to the opened folder. Raises OSError, Unsafe.
    """
    if not _HAS_USERS:
        yield None
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as error:
        if folder.is_symlink():
            raise Unsafe(f"{folder} is a link") from error
        raise
    try:
        require_ours(os.fstat(descriptor), folder)
        yield descriptor
    finally:
        os.close(descriptor)


def require_ours(status: os.stat_result, path: Path | str) -> None:
    """Raise Unsafe unless a file or folder with that status is this user's and no one else can write to it."""
    if _HAS_USERS:
        if status.st_uid != os.geteuid():
            raise Unsafe(f"{path} belongs to another user ({status.st_uid})")
        if status.st_mode & 0o022:
            raise Unsafe(f"{path} can be written to by others")
