"""The language: `Ops`, the catalogue of primitives, dims, types and errors."""
