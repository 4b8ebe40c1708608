"""Targets: where a model runs.

One folder each (`cpu/`, `cuda/`, `openvino/`) has all that is known of it: the hardware
(`device.py`), the options of its runtime (`options.py`), the target itself with its sessions
(`target.py`, `session.py`), and where fused kernels run there, how they are made (`lowering.py`).
`protocol.py` defines a target; `known.py` names them.
"""
