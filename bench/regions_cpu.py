"""Where the time of a model goes on a CPU, by kind of operator: our result for `--target cpu`, ONNX
Runtime, OpenVINO, and the least that this machine needs.

    python bench/regions_cpu.py [NAME ...] [--models DIR] [--small] [--budget 60] [--seconds 4]
    [--threads N]

A name is one of the models of `bench/optimize.py`, or of a file NAME.onnx in DIR. ONNX Runtime's
times are from its profiler, OpenVINO's from its counters; a node with operators of several kinds (a
product with an activation, a kernel of ours) counts for the first kind of KINDS. Whole runs are
timed apart, in turn, without either. The limit of a kind is its arithmetic over the rate of a
product in registers, or its weights over the bandwidth of a copy, if that is longer; both are
measured here first. A processor with a matrix unit (AMX) has a second rate: that of its products of
bfloat16 over six, as single precision takes six of them. Prints a table and writes
bench/results/regions_cpu-cpu2.json after each row (microseconds; rows of models that are not named
stay).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from machine_rates import SOURCE, Rates, rates  # noqa: E402
from optimize import MODELS  # noqa: E402
from rows import Rows  # noqa: E402
from runtimes_cpu import model_of, optimized  # noqa: E402

from taso_mirage import __version__  # noqa: E402
from taso_mirage.ir.model import Model, random_inputs  # noqa: E402
from taso_mirage.ir.terms import Node  # noqa: E402
from taso_mirage.measure import native  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.child import in_child  # noqa: E402
from taso_mirage.measure.target import CPU, OPENVINO, on_threads, runtimes_beside  # noqa: E402
from taso_mirage.measure.tasks import device_key  # noqa: E402
from taso_mirage.operators.expressions import is_weight  # noqa: E402
from taso_mirage.operators.ops import traits  # noqa: E402
from taso_mirage.operators.work import size, work  # noqa: E402

KINDS: Mapping[str, tuple[str, ...]] = {
    "convolutions": ("conv", "convtranspose", "fusedconv", "convolution", "groupconvolution", "deconvolution"),
    "products": ("gemm", "fusedgemm", "fullyconnected", "matmulnbits", "linear"),
    "attention": ("attention", "multiheadattention", "softmax", "groupqueryattention", "matmul", "fusedmatmul"),
    "norms": ("layernormalization", "skiplayernormalization", "batchnormalization", "mvn", "rmsnormalization"),
    "pools": ("maxpool", "averagepool", "globalaveragepool", "globalmaxpool", "pooling", "reducemean", "reduce"),
    "layouts": ("transpose", "reorder", "reorderinput", "reorderoutput", "concat", "concatenation", "slice", "split"),
    "others": (),
}
"""The kinds of operators, the first of which names a node of several, with the names that ONNX, its
runtime and OpenVINO give them."""
OURS, PEERS = "ours", ("onnxruntime", "openvino")
