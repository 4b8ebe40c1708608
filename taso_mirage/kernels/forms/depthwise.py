"""Convolutions of each channel alone on a GPU, in single precision."""

from __future__ import annotations

from functools import partial

from taso_mirage.kernels.codegen.gpu.depthwise import DepthwiseBlock
from taso_mirage.kernels.codegen.gpu.forms import GpuProgram
from taso_mirage.kernels.form import Form, ModelTerms, own_terms
from taso_mirage.kernels.gpu.depthwise import DepthwiseConvolution
from taso_mirage.kernels.gpu.followed import read_followed
from taso_mirage.kernels.gpu.in_operators import alone, with_epilogue
from taso_mirage.kernels.gpu.single_precision import fused_members, fused_term

OPERATOR = "depthwise_conv"
FORM = Form(
    GpuProgram(OPERATOR, DepthwiseBlock),
    partial(read_followed, OPERATOR, DepthwiseConvolution),
    own_terms(OPERATOR),
    operators=with_epilogue,
    alone=alone,
    terms=ModelTerms(partial(fused_members, True), partial(fused_term, OPERATOR)),
)
