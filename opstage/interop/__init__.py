"""Models and weights of other libraries: ONNX in and out, torch.export, state_dicts, Python source of either."""
