"""Opstage: models and losses written once against `Ops`, and interpreters that run, differentiate and check them."""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:  # the public names: type checkers read these imports, and so does `lazily`
    from collections.abc import Callable
    from typing import Any

    from . import callbacks as callbacks
    from . import data as data
    from . import debug as debug
    from . import derived as derived
    from . import init as init
    from . import models as models
    from . import optim as optim
    from . import transform as transform
    from .api import check as check
    from .api import empty_cache as empty_cache
    from .api import hessian as hessian
    from .api import hvp as hvp
    from .api import jacobian as jacobian
    from .api import jvp as jvp
    from .api import per_sample_gradients as per_sample_gradients
    from .api import remat as remat
    from .api import run as run
    from .api import value_and_grad as value_and_grad
    from .api import vjp as vjp
    from .api import vmap as vmap
    from .compilation import CompiledOut as CompiledOut
    from .compilation import CompiledScalar as CompiledScalar
    from .compilation import compile as compile
    from .compilation import record as record
    from .init import Declaration as Declaration
    from .interpreters.registry import register_interpreter as register_interpreter
    from .models import Model as Model
    from .models import Recipe as Recipe
    from .ops.errors import DeviceError as DeviceError
    from .ops.errors import DtypeError as DtypeError
    from .ops.errors import MeshError as MeshError
    from .ops.errors import OpstageError as OpstageError
    from .ops.errors import OutOfMemoryError as OutOfMemoryError
    from .ops.errors import ProgramError as ProgramError
    from .ops.errors import ProgramWarning as ProgramWarning
    from .ops.errors import RangeError as RangeError
    from .ops.errors import RankError as RankError
    from .ops.errors import ShapeError as ShapeError
    from .ops.errors import UnsupportedError as UnsupportedError
    from .ops.errors import UsageError as UsageError
    from .ops.errors import ValidationError as ValidationError
    from .ops.host_arrays import register_wire_format as register_wire_format
    from .ops.protocol import Aux as Aux
    from .ops.protocol import Ops as Ops
    from .ops.protocol import Ref as Ref
    from .ops.spec import Spec as Spec
    from .ops.spec import shapes as shapes
    from .ops.transform import Box as Box
    from .options import Options as Options
    from .runs.fit import fit as fit
    from .runs.plan import plan as plan
    from .runs.trained_model import load as load
    from .training.accumulate import Accumulate as Accumulate
    from .training.finite import NotFiniteError as NotFiniteError
    from .training.lr_range import lr_range_test as lr_range_test
    from .training.module import ScalarModule as ScalarModule
    from .training.module import ScalarModuleDef as ScalarModuleDef
    from .training.param import Param as Param
    from .training.session import Session as Session
    from .training.trainer import ScalarTrainer as ScalarTrainer
    from .training.trainer import scalar_trainer as scalar_trainer
    from .training.validate import check_step as check_step
    from .transforms.custom_ops import custom_op as custom_op
    from .transforms.custom_ops import custom_vjp as custom_vjp
    from .verification import bounds as bounds


def lazily(package: str, file: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, which imports a public name when it is first used.

    The public names are those that `file` imports for type checkers, each as `from .run import train as train`. So
    `opstage` heeds Ctrl-C before NumPy is imported, --help needs no model, and modules can be imported one by one.
    """
    import re
    from pathlib import Path

    text = Path(file).read_text(encoding="utf-8")
    homes = {name: home for home, name in re.findall(r"^    from (\.\S*) import (\w+) as \2$", text, re.MULTILINE)}

    def find(name: str) -> Any:
        import sys
        from importlib import import_module

        import_module(".threads", __name__)  # first: from then on a fork waits for imports in other threads
        if name == "__all__":
            return sorted(homes)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        home = homes[name]
        found = import_module(f".{name}", package) if home == "." else getattr(import_module(home, package), name)
        vars(sys.modules[package])[name] = found
        return found

    return find


if not TYPE_CHECKING:
    _find = lazily(__name__, __file__)

    def __getattr__(name):
        """Return a public name, or a module of the package, as it is first used."""
        from importlib import import_module

        if name == "trim":  # the earlier name of empty_cache, for one release
            return import_module(".api", __name__).trim
        if name == "__all__" or name in (names := _find("__all__")):
            return _find(name)
        module = f".{name}"
        try:
            return import_module(module, __name__)
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}{module}":
                raise
            from .ops.hints import of_a_module

            hint = of_a_module(__name__, name, names)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name) from None

    def __dir__():
        modules = ("facts", "interpreters", "onnx", "ops", "testing", "torch", "training")
        return [*_find("__all__"), "__version__", *modules]
