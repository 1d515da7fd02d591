"""Configuration: typed fields of dataclasses, filled in layers (defaults, files, environment, flags) by dotted path.

Command-line parsers and settings libraries merge such layers too, but forget which layer a value came from. Here every
value keeps its origin, for error messages and for the merged configuration as it is shown and saved.
"""

from .convert import Mismatch, convert
from .layers import Layer, Merged, merge
from .toml import read_toml, toml_literal

__all__ = ["Layer", "Merged", "Mismatch", "convert", "merge", "read_toml", "toml_literal"]
