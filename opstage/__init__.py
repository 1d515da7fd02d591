"""Opstage: programs written once against `Ops`, and interpreters that run, differentiate, record and check them."""

__version__ = "0.1.0"
