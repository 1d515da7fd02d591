"""Shared parts of model importers: values on edges, names, regions, and errors for unsupported nodes."""
