"""Targets: the runtimes and devices on which a model runs.

Each has a folder (`cpu/`, `cuda/`, `openvino/`) with the target itself and its sessions
(`target.py`, `session.py`). `protocol.py` defines a target; `known.py` names them. `devices/`
describes their hardware and options, and `lowering/` makes their fused kernels.
"""
