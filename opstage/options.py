"""`Options`, which control how a program is run, and reading them from a call, a TOML file or the environment."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np

from .config import Layer, toml_document
from .ops.errors import UsageError, brief, nearest
from .ops.hints import Renamed
from .ops.mesh import parse_mesh
from .ops.readable_amounts import parse_bytes
from .ops.splitmix import is_seed
from .ops.tracebacks import VARIABLE as TRACEBACK

__all__ = ["CudaGraphs", "FloatName", "MatmulPrecision", "Options"]
__dir__ = __all__.copy

DEVICES = ("cpu", "cuda")
"""The kinds of device."""
FloatName: TypeAlias = Literal["float32", "float64", "exact"]
CudaGraphs: TypeAlias = Literal["auto", "always", "never"]
MatmulPrecision: TypeAlias = Literal["fp32", "tf32", "bf16"]

_PREFIX = "OPSTAGE_"

KERNEL_CACHE = "OPSTAGE_KERNEL_CACHE"
"""The variable that limits the disk space of compiled kernels; it applies to the process and is not a program's
option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Renamed):
    """Everything that controls how a program is run, and nothing that changes its meaning.

    A value that a field does not allow is a `UsageError`, here and in every constructor below.

    Raises:
        UsageError: an option of no such value.
    """

    EARLIER_NAMES: ClassVar[Mapping[str, str]] = {"bucket": "bucket_size"}

    backend: str = "eager"
    """`eager`, `compiled`, `shape_check`, or any interpreter of the entry-point group `opstage.interpreters`."""
    device: str = "cpu"
    """Where tensors are stored: `cpu`, `cuda`, or one of several GPUs by its number, `cuda:1` (`cuda` is `cuda:0`), in
    the order of CUDA_VISIBLE_DEVICES. Requesting a GPU that does not exist is an error; there is no fallback."""
    dtype: FloatName = "float32"
    """The dtype to which floating inputs are cast; `exact` computes with `fractions.Fraction`, without rounding."""
    seed: int = 0
    """Seeds the random ops, the initialisers and the loaders; 0 <= seed < 2^64."""
    requires_grad_by_default: bool = True
    """Whether a parameter or input without its own setting takes a gradient."""
    fast_kernels: bool = True
    """Eager only: use compiled kernels where they are faster; False uses plain NumPy."""
    matmul_precision: MatmulPrecision = "fp32"
    """Arithmetic of float32 matrix products on a device with faster modes; the CPU supports only `fp32`."""
    cuda_graphs: CudaGraphs = "auto"
    """Compiled, on a GPU: whether a step is captured as a CUDA graph. If capture fails, `auto` warns once and issues
    the same calls one by one, with the same bits, and `always` is an error; `never` always issues them one by one."""
    strict_cuda: bool = True
    """Accepted for compatibility with the reference system; it has no effect, since CUDA never falls back to the
    CPU."""
    validate: bool = True
    """Check the shapes of the whole training step before anything is allocated."""
    detect_anomaly: bool = False
    """Stop at the first op that produces a non-finite value, and report the op and its line."""
    deterministic: bool = True
    """The same bits from run to run on the same machine."""
    mesh: str = ""
    """The ranks that share the work, as named axes with sizes: `data=4`; one rank by default. A check also takes names
    for sizes, `data=N`. See `opstage.ops.mesh`."""
    zero: int = 0
    """On a mesh: 2 shards the optimizer state over the axis `data` (ZeRO), with the same bits as 0, which keeps all of
    it on every rank; 3 also shards the parameters, which are gathered where they are used."""
    bucket_size: str = "1MiB"
    """With several processes: gradients are summed in buckets of about this size, each started as soon as it is full,
    while the backward pass continues; "0" sums each gradient by itself and waits for it. The size never changes the
    bits."""
    accumulate: int = 1
    """The number of parts in which a training step computes its batch, one after the other: the memory of one part, the
    gradient of the whole batch. See `Accumulate`."""
    timeout: int = 60
    """With several processes: after this many seconds without a message from another process, a run ends with an error
    that names the process that is stuck."""
    program_memory: str = "128MiB"
    """Compiled only: the memory for the programs of an interpreter, each with its graph, plan and constants; beyond it,
    the least recently used ones are dropped, and compiled again when needed."""

    def __post_init__(self) -> None:
        if isinstance(self.dtype, (type, np.dtype)):
            object.__setattr__(self, "dtype", np.dtype(self.dtype).name)
        for name, check in _CHECKS.items():
            reason = check(getattr(self, name))
            if reason is not None:
                raise UsageError(f"option {name}: {reason}")
        object.__setattr__(self, "seed", int(self.seed))

    @property
    def bucket(self) -> str:
        """The earlier name of `bucket_size`, for one release."""
        _current_name("bucket")
        return self.bucket_size

    @property
    def use_gpu(self) -> bool:
        """Whether tensors are on a CUDA device."""
        return self.device != "cpu"

    @property
    def device_kind(self) -> str:
        """`cpu` or `cuda`."""
        return self.device.partition(":")[0]

    @property
    def device_number(self) -> int:
        """The number of the GPU; 0 where none is given."""
        return int(self.device.partition(":")[2] or 0)

    def require_one_rank(self, what: str) -> None:
        """Raise UsageError for a mesh of several ranks, which `what` does not support."""
        if not parse_mesh(self.mesh).is_alone:
            raise UsageError(
                f"{what} runs the program of one rank, but the options have mesh={self.mesh!r}; leave it out: "
                "scalar_trainer, fit and opstage train are what shares out a batch"
            )

    def replace(self, **changes: Any) -> Options:
        """A copy with some values changed; an unknown name is a `UsageError`."""
        return self.from_dict(changes, base=self, source="Options.replace")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, base: Options | None = None, source: str = "options") -> Options:
        """Options from a mapping of names to values; missing ones are taken from `base`.

        Raises `UsageError`, beginning with `source` and the key, on an unknown key or a value that its field does not
        allow.
        """
        values = current_names(values)
        for name, value in values.items():
            if name not in _CHECKS:
                raise UsageError(f"{source}: {_unknown(name)}")
            reason = _CHECKS[name](value)
            if reason is not None:
                raise UsageError(f"{source}: {name}: {reason}")
        return dataclasses.replace(base if base is not None else cls(), **values)

    @classmethod
    def from_toml(
        cls, path: str | os.PathLike[str], table: str | None = "options", *, base: Options | None = None
    ) -> Options:
        """Options from a TOML file, from its table `table` (`train.options` for a nested one).

        A file without any table is read at its top level, as is any file with `table=None`. Raises `UsageError`, naming
        the file and the key, when the file is missing or not TOML, and as `from_dict` does.
        """
        document, _ = toml_document(path, "the options")
        if table is None or not any(isinstance(value, dict) for value in document.values()):
            return cls.from_dict(document, base=base, source=str(path))
        found: Any = document
        for part in table.split("."):
            tables = [name for name, value in found.items() if isinstance(value, dict)]
            if part not in tables:
                has = f"it has {', '.join(f'[{name}]' for name in tables)}" if tables else "it has none there"
                raise UsageError(f"{path}: no table [{table}]{nearest(part, tables)}; {has}")
            found = found[part]
        return cls.from_dict(found, base=base, source=f"{path} [{table}]")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, *, base: Options | None = None) -> Options:
        """Options from the variables `OPSTAGE_BACKEND`, `OPSTAGE_DEVICE` …, one per field, in capitals.

        Booleans are written true, false, 1 or 0. Raises `UsageError`, naming the variable, on a value that its field
        does not allow and on a variable that begins with `OPSTAGE_` and is not an option.
        """
        values = {path.partition(".")[2]: value for path, value in environment(environ).values.items()}
        return dataclasses.replace(base if base is not None else cls(), **values)


# Earlier names, which are accepted for one release --------------------------------------------------------------------


def _current_name(name: str, stacklevel: int = 3) -> str:
    new = Options.EARLIER_NAMES.get(name)
    if new is None:
        return name
    warnings.warn(f"option {name} is now {new}; the next release drops {name}", DeprecationWarning, stacklevel)
    return new


def current_names(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options by their current names; an earlier name is a DeprecationWarning."""
    if Options.EARLIER_NAMES.keys().isdisjoint(values):
        return values
    return {_current_name(name, 4): value for name, value in values.items()}


_init = Options.__init__


@wraps(_init)
def _init_of_current_names(self: Options, **values: Any) -> None:
    _init(self, **current_names(values))


Options.__init__ = _init_of_current_names  # type: ignore[method-assign]

# Values and their checks ----------------------------------------------------------------------------------------------

_Check: TypeAlias = "Callable[[Any], str | None]"


def _is_name(value: Any) -> str | None:
    if isinstance(value, str) and value.strip():
        return None
    return f"{value!r} is not the name of an interpreter; expected a string such as 'eager'"


def _is_one_of(literal: Any) -> _Check:
    choices = get_args(literal)

    def check(value: Any) -> str | None:
        if isinstance(value, str) and value in choices:
            return None
        close = nearest(value, choices) if isinstance(value, str) else ""
        return f"{value!r} is not one of {', '.join(map(repr, choices))}{close}"

    return check


_DEVICE = re.compile(r"cpu|cuda(:(0|[1-9][0-9]{0,3}))?")


def is_device(word: str) -> bool:
    """Whether the word names a device, whether or not it is present."""
    return _DEVICE.fullmatch(word) is not None


def _is_device(value: Any) -> str | None:
    if isinstance(value, str) and is_device(value):
        return None
    close = nearest(value, DEVICES) if isinstance(value, str) else ""
    kinds = ", ".join(map(repr, DEVICES))
    return f"{value!r} is not one of {kinds}{close}; one GPU of several is named by its number, as in 'cuda:1'"


def _is_amount(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"{value!r} is not an amount of memory; expected text such as '128MiB'"
    return _why_no_amount(value)


@lru_cache(maxsize=64)  # most options are the defaults, and an Options is made for almost every call
def _why_no_amount(text: str) -> str | None:
    try:
        parse_bytes(text)
    except UsageError as error:
        return str(error)
    return None


def _is_bucket(value: Any) -> str | None:
    return None if value == "0" else _is_amount(value)


def _is_mesh(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"{value!r} is not a mesh; expected text such as 'data=4'"
    try:
        parse_mesh(value)
    except UsageError as error:
        return str(error)
    return None


def _satisfies(test: Callable[[Any], bool], expected: str) -> _Check:
    return lambda value: None if test(value) else f"{value!r} is not {expected}"


def _is_between(low: int, high: float, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


_is_bool = _satisfies(lambda value: isinstance(value, bool), "a boolean; expected true or false")

# One check per field, in field order: each returns what is wrong with a value, or None.
_CHECKS: dict[str, _Check] = {
    "backend": _is_name,
    "device": _is_device,
    "dtype": _is_one_of(FloatName),
    "seed": _satisfies(is_seed, "a seed; expected an integer with 0 <= seed < 2^64"),
    "requires_grad_by_default": _is_bool,
    "fast_kernels": _is_bool,
    "matmul_precision": _is_one_of(MatmulPrecision),
    "cuda_graphs": _is_one_of(CudaGraphs),
    "strict_cuda": _is_bool,
    "validate": _is_bool,
    "detect_anomaly": _is_bool,
    "deterministic": _is_bool,
    "mesh": _is_mesh,
    "zero": _satisfies(lambda v: type(v) is int and v in (0, 2, 3), "a level of ZeRO; expected 0, 2 or 3"),
    "bucket_size": _is_bucket,
    "accumulate": _satisfies(
        lambda v: _is_between(1, math.inf, v), "a number of parts; expected an integer that is at least 1"
    ),
    "timeout": _satisfies(
        lambda v: _is_between(1, 1_000_000, v), "a number of seconds; expected an integer from 1 to 1,000,000"
    ),
    "program_memory": _is_amount,
}


def _unknown(name: str) -> str:
    return f"unknown option {name!r}{nearest(name, _CHECKS)}; the options are {', '.join(_CHECKS)}"


def read_option(name: str, text: str) -> Any:
    """The value of option `name` written as `text`; a `UsageError` for an unknown option or a value it does not
    allow."""
    name = _current_name(name)
    if name not in _CHECKS:
        raise UsageError(_unknown(name))
    value: Any = text.strip()
    kind = type(getattr(_DEFAULT, name))
    if kind is bool:
        value = {"true": True, "1": True, "false": False, "0": False}.get(value.lower(), text)
        if value is text:
            raise UsageError(f"{text!r} is not a boolean; expected true, false, 1 or 0")
    elif kind is int and value.isascii() and value.isdigit() and len(value) <= 20:
        value = int(value)
    reason = _CHECKS[name](value)
    if reason is not None:
        raise UsageError(reason)
    return value


def environment(environ: Mapping[str, str] | None = None) -> Layer:
    """Return the options that the environment sets, as `options.seed`. Raises UsageError, see `Options.from_env`."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for variable, text in (os.environ if environ is None else environ).items():
        if not variable.startswith(_PREFIX) or variable in (KERNEL_CACHE, TRACEBACK):
            continue
        origin = f"environment variable {variable}"
        name = variable.removeprefix(_PREFIX).lower()
        name = _current_name(name) if variable == _PREFIX + name.upper() else ""
        if name not in _CHECKS:
            variables = [_PREFIX + field.upper() for field in _CHECKS]
            close = nearest(variable.upper(), variables)
            raise UsageError(f"{origin}: unknown option{close}; the variables are {', '.join(variables)}")
        try:
            values[f"options.{name}"] = read_option(name, text)
        except UsageError as error:
            raise UsageError(f"{origin}: {error}") from None
        origins[f"options.{name}"] = origin
    return Layer(values, origins)


_DEFAULT = Options()


def options_of(options: Options | None) -> Options:
    """The options of a call; default ones for None. Raises UsageError for anything else."""
    if options is None:
        return _DEFAULT
    if not isinstance(options, Options):
        raise UsageError(f"options must be opstage.Options(…) but are {brief(options)}")
    return options
