"""Every op's samples and bad calls, a family in one file, or several."""

from importlib import import_module
from pathlib import Path

from tests.samples.sample import BadCall, Sample

_FILES = sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - {"__init__", "parts", "sample"})
_modules = [import_module(f"tests.samples.{family}") for family in _FILES]
SAMPLES: list[Sample] = [sample for module in _modules for sample in module.SAMPLES]
BAD_CALLS: list[BadCall] = [bad for module in _modules for bad in module.BAD_CALLS]
