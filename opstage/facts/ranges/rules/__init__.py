"""Ranges of results, by family of ops."""
