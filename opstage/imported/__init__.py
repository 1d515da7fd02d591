"""Shared parts of importers of foreign models: values on edges, names, regions and the refusal of nodes."""
