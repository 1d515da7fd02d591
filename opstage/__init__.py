"""Opstage: models and losses written once against `Ops`, and interpreters that run, differentiate and check them."""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import init, models
    from .api import check, hvp, jvp, run, trim, value_and_grad, vjp
    from .compilation import CompiledOut, CompiledScalar, compile, record
    from .interpreters.wire import register_wire_format
    from .ops import derived, transform
    from .ops.declared import shapes
    from .ops.errors import (
        DeviceError,
        DtypeError,
        OpstageError,
        OutOfMemoryError,
        ProgramError,
        ProgramWarning,
        RangeError,
        ShapeError,
        UnsupportedError,
        UsageError,
        ValidationError,
    )
    from .ops.program import Aux
    from .ops.protocol import Ops, Ref
    from .ops.spec import Spec
    from .options import Options
    from .training import optim
    from .training.finite import NotFiniteError
    from .training.module import ScalarModule, ScalarModuleDef
    from .training.param import Param
    from .training.session import Session
    from .training.trainer import ScalarTrainer, scalar_trainer
    from .training.validate import check_step

__all__ = [
    "Aux",
    "CompiledOut",
    "CompiledScalar",
    "DeviceError",
    "DtypeError",
    "NotFiniteError",
    "Ops",
    "OpstageError",
    "Options",
    "OutOfMemoryError",
    "Param",
    "ProgramError",
    "ProgramWarning",
    "RangeError",
    "Ref",
    "ScalarModule",
    "ScalarModuleDef",
    "ScalarTrainer",
    "Session",
    "ShapeError",
    "Spec",
    "UnsupportedError",
    "UsageError",
    "ValidationError",
    "check",
    "check_step",
    "compile",
    "derived",
    "hvp",
    "init",
    "jvp",
    "models",
    "optim",
    "record",
    "register_wire_format",
    "run",
    "scalar_trainer",
    "shapes",
    "transform",
    "trim",
    "value_and_grad",
    "vjp",
]

# A name is imported when it is first used: so `opstage` heeds Ctrl-C before NumPy is there, and --help needs no model.
_HOMES = {
    ".api": "check hvp jvp run trim value_and_grad vjp",
    ".compilation": "CompiledOut CompiledScalar compile record",
    ".interpreters.wire": "register_wire_format",
    ".ops.declared": "shapes",
    ".ops.errors": "DeviceError DtypeError OpstageError OutOfMemoryError ProgramError ProgramWarning RangeError "
    "ShapeError UnsupportedError UsageError ValidationError",
    ".ops.program": "Aux",
    ".ops.protocol": "Ops Ref",
    ".ops.spec": "Spec",
    ".options": "Options",
    ".training.finite": "NotFiniteError",
    ".training.module": "ScalarModule ScalarModuleDef",
    ".training.param": "Param",
    ".training.session": "Session",
    ".training.trainer": "ScalarTrainer scalar_trainer",
    ".training.validate": "check_step",
}
_MODULES = {"derived": ".ops.derived", "transform": ".ops.transform", "optim": ".training.optim"}

if not TYPE_CHECKING:

    def __getattr__(name):
        """A name of `__all__`, or a module of the package, as it is first used."""
        from importlib import import_module

        import_module(".forks", __name__)  # first: from then on a fork waits for imports in other threads
        home = next((module for module, names in _HOMES.items() if name in names.split()), None)
        if home is not None:
            found = getattr(import_module(home, __name__), name)
        else:
            module = _MODULES.get(name, f".{name}")
            try:
                found = import_module(module, __name__)
            except ModuleNotFoundError as error:
                if error.name != f"{__name__}{module}":
                    raise
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
        globals()[name] = found
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
