"""Programs of torch.export, imported, beside PyTorch itself."""
