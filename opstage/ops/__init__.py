"""The language: the `Ops` protocol, the catalogue of primitives, dims, types and errors."""
