"""From PyTorch: graphs that `torch.compile` captures, through ONNX, and back as functions of
tensors."""
