"""Operators of foreign programs as programs over Ops: one table for ONNX and ATen, in both directions."""
