"""Operator specifications: one file per operator or tight family, each with ONNX mapping,
definition, laws and examples."""
