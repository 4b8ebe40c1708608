"""The form of searched kernels on a GPU, whose terms have a body."""

from __future__ import annotations

from collections.abc import Sequence

from taso_mirage.emit.gpu.block import TritonBlock
from taso_mirage.emit.gpu.clusters import SOURCE
from taso_mirage.emit.gpu.forms import Buffers, GpuProgram, OperandTensors
from taso_mirage.emit.gpu.small_floats import CONVERSIONS
from taso_mirage.emit.gpu.warp_specialized import WarpSpecializedBlock
from taso_mirage.emit.gpu.warp_specialized_text import HELPERS
from taso_mirage.forms.base.form import Form, own_terms
from taso_mirage.ir.terms import Node


def _kernel(node: Node, name: str, reads: OperandTensors, writes: Buffers, sizes: Sequence[str]) -> TritonBlock:
    return TritonBlock(node, name, [each for each in reads if each is not None], writes, sizes)


OPERATOR = "kernel"
FORM = Form(
    GpuProgram(OPERATOR, _kernel, WarpSpecializedBlock, (HELPERS, SOURCE, CONVERSIONS)),
    lambda goal: None,
    own_terms(OPERATOR),
)
