"""ONNX models as programs over Ops, and recorded programs as ONNX models."""
