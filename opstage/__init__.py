"""Programs written once against a language of tensor operations, and interpreters that run, differentiate, record and check them."""

__version__ = "0.1.0"
