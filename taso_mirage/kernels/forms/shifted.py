"""Convolutions of one group on a GPU, in single precision, whose products are shifted and added."""

from __future__ import annotations

from functools import partial

from taso_mirage.kernels.codegen.gpu.forms import GpuProgram
from taso_mirage.kernels.codegen.gpu.shifted import ShiftedBlock
from taso_mirage.kernels.codegen.gpu.stationary import StationaryBlock
from taso_mirage.kernels.codegen.gpu.stationary_text import ROUNDED_TILES
from taso_mirage.kernels.form import Form, ModelTerms, own_terms
from taso_mirage.kernels.gpu.followed import read_followed
from taso_mirage.kernels.gpu.in_operators import alone, with_epilogue
from taso_mirage.kernels.gpu.shifted import ShiftedConvolution
from taso_mirage.kernels.gpu.single_precision import fused_members, fused_term

OPERATOR = "shifted_conv"
FORM = Form(
    GpuProgram(OPERATOR, ShiftedBlock, StationaryBlock, (ROUNDED_TILES,)),
    partial(read_followed, OPERATOR, ShiftedConvolution),
    own_terms(OPERATOR),
    operators=with_epilogue,
    alone=alone,
    terms=ModelTerms(partial(fused_members, False), partial(fused_term, OPERATOR)),
    in_parts=True,
)
