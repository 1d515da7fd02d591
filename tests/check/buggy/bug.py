"""`Bug`: a model's source with one text in the place of another, and what a check is to find in it."""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import opstage
import opstage.models
from opstage.interpreters.shape_check.report import Report
from opstage.models import model as shipped_model
from opstage.models.model import Model

MODELS = Path(opstage.models.__file__).parent

# Sizes that differ wherever they can, so that a mistake about them is one of shapes.
CONFIGS: dict[str, dict[str, Any]] = {
    "mlp": {"inputs": (1, 8, 12), "hidden": (48, 40)},
    "cnn": {"height": 8, "width": 24, "channels": (4, 6, 10), "dense": 20},
    "resnet": {"height": 8, "width": 12, "channels": (6, 10), "blocks": 2},
    "unet": {"height": 8, "width": 12, "channels": (4, 8, 16)},
    "vae": {"inputs": (1, 8, 12), "hidden": (48, 40), "latent": 6},
    "pinn": {"hidden": (12, 20)},
    "lstm": {"height": 6, "width": 8, "hidden": 10},
    "vit": {"height": 8, "width": 12, "embedding": 32, "depth": 2, "hidden": 40},
    "gpt": {"length": 64, "width": 48, "depth": 2, "heads": 4, "hidden": 80},
}


@dataclass(frozen=True)
class Bug:
    """A mistake.

    kind        what sort of mistake it is
    old, new    the text that stands once in the source, and the wrong one
    op, says    the op that the first finding names, and the part of its reason that tells what is wrong
    at          text of the line that it names, where that is not the first of `new`; or (file, text)
    file        whose source has it: the model's own, or that of layers it is made of
    fix         part of what is suggested, if anything is
    errors      how many findings there are
    verdict     refuted, undecided or warning
    """

    name: str
    kind: str
    old: str
    new: str
    op: str
    says: str
    at: str | tuple[str, str] = ""
    file: str = ""
    fix: str = ""
    errors: int = 1
    verdict: str = "refuted"

    @property
    def model(self) -> str:
        return self.name.split("-")[0]

    @property
    def module(self) -> str:
        """The name of the module that has the mistake."""
        return self.file or self.model

    def source_of_module(self) -> str:
        """The right module's text."""
        return (MODELS / f"{self.module}.py").read_text()

    def source(self) -> str:
        """The wrong module's text; the right one must have `old` exactly once."""
        text = self.source_of_module()
        count = text.count(self.old)
        assert count == 1, f"{self.name}: {self.module}.py has {self.old!r} {count} times"
        return text.replace(self.old, self.new)

    def place(self) -> tuple[str, int]:
        """File name and number of the line that the finding is to name."""
        file, text = self.at if isinstance(self.at, tuple) else (f"{self.module}.py", self.at)
        source = self.source() if file == f"{self.module}.py" else (MODELS / file).read_text()
        wanted = text or self.new.splitlines()[0].strip()
        numbers = [i for i, line in enumerate(source.splitlines(), 1) if wanted in line]
        assert len(numbers) == 1, f"{self.name}: {file} has {wanted!r} on lines {numbers}"
        return file, numbers[0]

    def build(self, folder: Path) -> Model:
        """The wrong model, its module run from a file in `folder`."""
        path = folder / f"{self.module}.py"
        path.write_text(self.source())
        linecache.checkcache(str(path))
        with mock.patch.dict(sys.modules):
            module = _load(f"opstage.models.{self.module}", path)
            for user in dict.fromkeys(("layers", "transformer_block", self.model)):  # those that import it, in order
                if user != self.module:
                    module = _load(f"opstage.models.{user}", MODELS / f"{user}.py")
            if self.module == self.model:
                module = sys.modules[f"opstage.models.{self.model}"]
            made: Model = module.make(module.Config(**CONFIGS[self.model]))
        return made

    def report(self, folder: Path) -> Report:
        """What a check says of one training step."""
        return step_report(self.build(folder))


def _load(name: str, path: Path) -> ModuleType:
    """A module of the file as it is now: bytecode may be kept of one that was as long, written the same second."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    return module


def right(name: str) -> Model:
    """The shipped model, of the sizes that its wrong variants have."""
    module = importlib.import_module(f"opstage.models.{name}")
    return shipped_model(name, module.Config(**CONFIGS[name]))


def step_report(model: Model) -> Report:
    return opstage.check_step(model.loss, model.init, *model.batch, state=model.state)
