"""OpenVINO on a CPU, with a compiler and kernels of its own: substitutions alone, in standard ONNX
(extra `openvino`)."""
