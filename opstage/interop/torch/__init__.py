"""Programs of torch.export as programs over Ops."""
