"""Convolutions with channels last on a GPU, in half precision."""

from __future__ import annotations

from taso_mirage.kernels.codegen.gpu.convolution import ConvolutionBlock
from taso_mirage.kernels.codegen.gpu.forms import GpuProgram
from taso_mirage.kernels.form import Form, own_terms
from taso_mirage.kernels.gpu.convolutions import OPERATOR, read_convolution
from taso_mirage.kernels.gpu.in_operators import channels_first

FORM = Form(GpuProgram(OPERATOR, ConvolutionBlock), read_convolution, own_terms(OPERATOR), operators=channels_first)
