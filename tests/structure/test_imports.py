"""The ways in which people import: each finds one and the same module, in a process that has imported nothing else."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from types import ModuleType

import pytest

import opstage
from opstage import optim

LINES = [
    "from opstage.optim import adamw, clip, schedule; import opstage; assert opstage.optim.adamw is adamw",
    "import opstage.optim; assert opstage.optim.sgd(lr=0.1).lr == 0.1",
    "import opstage.optim as o; from opstage import optim; import opstage; assert o is optim is opstage.optim",
    "import opstage; o = opstage.optim; import opstage.optim; assert o is opstage.optim",
    "from opstage import optim; from opstage.optim import clip; assert clip is optim.clip",
    "from opstage.transform import grad; import opstage; assert opstage.transform.grad is grad",
    "from opstage.derived import dropout; import opstage; assert opstage.derived.dropout is dropout",
    "from opstage.callbacks import EarlyStopping as E; import opstage; assert opstage.callbacks.EarlyStopping is E",
    "from opstage.data import Loader; import opstage; assert opstage.data.Loader is Loader",
    "import opstage; assert opstage.data.Loader and opstage.init.zeros and opstage.models and opstage.ops",
    "import sys; from opstage.models import MODELS; assert 'mlp' in MODELS and 'opstage.models.mlp' not in sys.modules",
    "import opstage; assert opstage.models.mlp.make and opstage.models.mlp.RECIPE.goal == 0.98",
    "import sys, opstage.cli.check.command; assert 'opstage.training.trainer' not in sys.modules",
    "import opstage.runs as e; assert e.train and e.Settings and not hasattr(e, 'trian')",
    "import pickle; from opstage.optim import adamw; assert pickle.loads(pickle.dumps(adamw(lr=0.5))) == adamw(lr=0.5)",
]


@pytest.mark.parametrize("line", LINES)
def test_each_works_first_thing(line: str) -> None:
    subprocess.run([sys.executable, "-c", line], check=True)


def test_every_shipped_optimizer_is_exported() -> None:
    assert set(optim.SHIPPED) <= set(optim.__all__)


PUBLIC = [
    *("opstage.api", "opstage.callbacks", "opstage.compilation", "opstage.data", "opstage.debug", "opstage.derived"),
    *("opstage.facts", "opstage.init", "opstage.interpreters.graph", "opstage.models", "opstage.onnx", "opstage.optim"),
    *("opstage.onnx.source", "opstage.onnx.trainable", "opstage.ops.derived", "opstage.ops.dims", "opstage.options"),
    *("opstage.ops.protocol", "opstage.ops.transform", "opstage.optim.clip", "opstage.optim.schedule", "opstage.runs"),
    *("opstage.testing", "opstage.torch", "opstage.torch.trainable", "opstage.training.callbacks", "opstage.transform"),
    *("opstage.training.checkpoint", "opstage.training.fit", "opstage.training.memory", "opstage.interop.weights"),
]


@pytest.mark.parametrize("name", PUBLIC)
def test_tab_completion_lists_the_public_names_alone(name: str) -> None:
    module = import_module(name)
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, each) for each in module.__all__)


def test_tab_completion_lists_the_public_names_and_modules_of_the_package() -> None:
    others = {"__version__", "facts", "interpreters", "onnx", "ops", "testing", "torch", "training"}
    assert set(dir(opstage)) == {*opstage.__all__, *others}
    assert all(hasattr(opstage, name) for name in others)
    assert all(isinstance(getattr(opstage.ops, name), ModuleType) for name in dir(opstage.ops) if name[0] != "_")
