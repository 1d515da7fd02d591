"""Machine code on disk: named by what it depends on, in a folder that can be trusted, of a limited size.

A digest covers everything that machine code depends on except the source itself: Opstage, the compiler, the processor
and settings. Whole files are hashed: numba itself checks only the file of the outermost function, and would not notice
a change in a formula that this calls. Each file has a digest of its content."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...ops.errors import UsageError, warn_user
from ...ops.readable_amounts import parse_bytes
from ...options import KERNEL_CACHE
from ...threads import make_lock

# The processor --------------------------------------------------------------------------------------------------------

_INFORMATION = Path("/proc/cpuinfo")
_NAMING = ("vendor_id", "cpu family", "model", "stepping", "model name")


@cache
def processor() -> tuple[str, ...]:
    """Return names that differ between processors for which LLVM generates different code."""
    found = _read_cpuinfo() if sys.platform == "linux" and platform.machine() == "x86_64" else {}
    if "flags" in found:
        return ("linux", "x86_64", *(found.get(name, "") for name in _NAMING), " ".join(sorted(found["flags"].split())))
    llvm = import_module("llvmlite.binding")
    return llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


@cache
def has_avx512() -> bool:
    """Whether there are 32 registers of 64 bytes, and the system saves them."""
    told = processor()
    if told[:2] == ("linux", "x86_64"):
        return "avx512f" in told[-1].split()
    return bool(import_module("llvmlite.binding").get_host_cpu_features().get("avx512f"))


def _read_cpuinfo() -> dict[str, str]:
    """Return the system's description of the first processor, by name."""
    try:
        first = _INFORMATION.read_text().partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


# The digest -----------------------------------------------------------------------------------------------------------

PACKAGE = Path(__file__).resolve().parents[2]

SOURCES = (
    "compiler/native",
    "compiler/native/frontend",
    "compiler/scalar.py",
    "interpreters/eager_cpu/loops",
    "ops/host_arrays.py",
    "compiler/codegen",
    "compiler/codegen/cpu",
    "interpreters/graph/cpu",
    "ops/splitmix.py",
)
"""The folders and files of the package that are compiled, or that generate compiled source."""

_COMPILERS = ("numba", "llvmlite")
_ELSEWHERE = (  # paths, GPU settings, and threads, over which a step is divided at run time
    "NUMBA_CACHE_",
    "NUMBA_CUDA_",
    "NUMBA_DEBUG_CACHE",
    "NUMBA_DISABLE_CUDA",
    "NUMBA_ENABLE_CUDASIM",
    "NUMBA_NUM_THREADS",
    "NUMBA_THREADING_LAYER",
)
_SETTINGS_FILE = ".numba_config.yaml"  # which numba reads from the current folder


@cache
def environment() -> str:
    """Return the digest, hexadecimal; "" if the package's sources cannot be read, as in a zip file."""
    sources = compiled_sources()
    if not sources:
        return ""
    parts = [sources, *_versions(), *processor(), *numba_settings(os.environ)]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def compiled_sources(package: Path = PACKAGE) -> str:
    """Return a digest of the names and contents of SOURCES; "" if one of them is missing."""
    digest = hashlib.sha256()
    for name in SOURCES:
        place = package / name
        files = sorted(place.glob("*.py")) if place.suffix != ".py" else [place]
        if not files:
            return ""
        for path in files:
            try:
                content = path.read_bytes()
            except OSError:
                return ""
            digest.update(f"{name}/{path.name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def numba_settings(environ: Mapping[str, str]) -> list[str]:
    """Return numba's settings, except those that do not affect code; an unknown one is assumed to affect it."""
    found = [f"{name}={value}" for name, value in environ.items() if name.startswith("NUMBA_")]
    found = sorted(setting for setting in found if not setting.startswith(_ELSEWHERE))
    try:
        found.append(hashlib.sha256(Path(_SETTINGS_FILE).read_bytes()).hexdigest())
    except OSError:
        pass
    return found


def _versions() -> Iterator[str]:
    yield f"opstage {sys.modules['opstage'].__version__}"
    yield f"python {sys.implementation.cache_tag} {platform.python_version()}"
    yield f"numpy {np.__version__}"
    for name in _COMPILERS:
        yield f"{name} {_package_version(name)}"
    prefix = os.path.dirname(os.path.dirname(sys.executable or ""))
    vector_math = Path(prefix, "lib", "libsvml.so")  # numba calls it if present
    yield f"svml {vector_math.stat().st_size if vector_math.exists() else None}"


def _package_version(name: str) -> str:
    """Return the version of the package that an import would find, without importing it."""
    spec = find_spec(name)
    for folder in (spec.submodule_search_locations if spec is not None else None) or ():
        try:
            return Path(folder, "_version.py").read_text("utf-8")
        except OSError:
            continue
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


# The size limit: the least recently used files are removed first ------------------------------------------------------

# Several processes may write and remove files at once. A file removed by another process is simply gone, and a
# process that misses a kernel compiles it again, so no lock is needed.

_log = logging.getLogger(__name__)

DEFAULT = 512 << 20
_FOLDER = re.compile(r"opstage-[0-9a-f]{16}")  # of this environment and of others, including earlier ones
_SHARE = 16  # a sixteenth of the limit may be written between two scans of the folders

_written: dict[Path, int] = {}
"""Bytes written since the last scan, by the parent of the cache folders."""


class _File(NamedTuple):
    used: float
    nbytes: int
    path: str


def limit() -> int:
    """Return the limit of machine code on disk in bytes, 0 for none. Raises UsageError if the variable is not an
    amount."""
    text = os.environ.get(KERNEL_CACHE, "").strip()
    if not text or text == "0":
        return 0 if text else DEFAULT
    try:
        return parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"environment variable {KERNEL_CACHE}: {error}; 0 stores nothing on disk") from None


def note_written(folder: Path, nbytes: int) -> None:
    """Record that bytes were written to `folder`, and scan if that may exceed the limit, also the first time."""
    bound, base = limit(), folder.parent
    since = _written.get(base)
    if since is not None and since + nbytes < bound // _SHARE:
        _written[base] = since + nbytes
        return
    _written[base] = 0
    shrink(base, bound)


def shrink(base: Path, bound: int) -> None:
    """Remove files from the cache folders in `base`, down to `bound` bytes minus what may be written unnoticed."""
    files = sorted(file for folder in _folders(base) for file in _files(folder))
    total = sum(file.nbytes for file in files)
    if total <= bound:
        return
    for file in files:
        if total <= bound - bound // _SHARE:
            break
        with suppress(OSError):
            os.unlink(file.path)
        total -= file.nbytes
    _log.debug("kernels in %s were shrunk to %d bytes", base, total)


def _folders(base: Path) -> Iterator[str]:
    """Yield this user's cache folders."""
    user = os.geteuid() if hasattr(os, "geteuid") else None
    with suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            ours = user in (None, entry.stat(follow_symlinks=False).st_uid)
            if ours and _FOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                yield entry.path


def _files(folder: str) -> Iterator[_File]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    yield from _files(entry.path)
                else:
                    yield _File(status.st_mtime, max(status.st_size, 1), entry.path)


# The folder -----------------------------------------------------------------------------------------------------------

# Cached code is executed, so a folder is used only if nobody but this user (and the superuser) could have written to
# it: the user owns it, its mode is 0700, and no one else can rename or replace a folder above it.
#
# It is in NUMBA_CACHE_DIR if that is set, else next to this file, else in the user's cache, and is named by the
# digest of the environment. If none can be used, a warning says why and code is kept in memory only.

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
            reasons.append(f"the home folder {home!r} does not exist")
    for base in bases:
        folder = base / f"opstage-{digest[:16]}"
        try:
            return _prepared(folder)
        except OSError as error:
            reasons.append(f"{folder} is not writable ({error.strerror})")
        except Unsafe as error:
            reasons.append(str(error))
    message = (
        f"compiled kernels cannot be stored on disk: {'; '.join(reasons)}. Every process will compile them again. "
        "Set NUMBA_CACHE_DIR to a folder that belongs to you and that nobody else can write to, or use "
        "Options(fast_kernels=False)"
    )
    warn_user(UserWarning(message))
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
            raise Unsafe(f"{place} is writable by other users")


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
            raise Unsafe(f"{path} is writable by other users")


# Files ----------------------------------------------------------------------------------------------------------------

# It is written under a random name and renamed, so that two processes may write one file, and no reader sees a
# partial one. A file that another user owns or could have changed is not read; links are not followed.

_DIGEST_BYTES = 32
_OPEN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def _digest(key: str, code: bytes) -> bytes:
    """Hash the key too: code under another key's name is damage as well."""
    return hashlib.sha256(key.encode() + code).digest()


def read_code(path: Path, key: str) -> bytes | None:
    """Return the code stored at `path` under `key`; None if it is missing or damaged."""
    try:
        with opened(path.parent) as folder:
            kept = _content(path, folder)
    except FileNotFoundError:
        return None
    except (OSError, Unsafe) as error:
        _log.debug("cached kernel %s is not read and will be compiled again: %s", path, error)
        return None
    digest, code = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
    if _digest(key, code) != digest:
        _log.debug("cached kernel %s is damaged and will be compiled again", path)
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


def write_code(path: Path, key: str, code: bytes) -> None:
    """Store the code; if the disk is full or read-only, the next process compiles it again."""
    try:
        with opened(path.parent) as folder:
            temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
            _replace(path, temporary, _digest(key, code) + code, folder)
    except (OSError, Unsafe) as error:
        _log.debug("kernel not stored at %s: %s", path, error)
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
