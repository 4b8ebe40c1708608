"""Convolutions in single precision as kernels for a GPU: with channels first, as models have them,
and an epilogue element by element.

A goal is one term, `shifted_conv`; its muGraphs differ only in block sizes. Libraries multiply with
channels last, which takes two additional copies of an image, and run the epilogue as a separate
kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.emit.gpu.forms import GpuProgram
from taso_mirage.emit.gpu.shifted import ShiftedBlock
from taso_mirage.emit.gpu.stationary import StationaryBlock
from taso_mirage.emit.gpu.stationary_text import ROUNDED_TILES
from taso_mirage.forms.base.conversion import Conversion
from taso_mirage.forms.base.fused_convolution import FusedConvolution, fused_form, small_sides, small_transposed
from taso_mirage.forms.base.in_operators import nearest_tf32
from taso_mirage.forms.base.single_precision import FusedKind, MatchedNames, patterns
from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.operators.ops import term

BLOCK = (128, 64, 16, 1)
"""The placeholder of a block in a goal, which is never launched."""
TILES = ((128, 64, 16), (128, 64, 32), (128, 32, 16), (128, 128, 32), (256, 32, 16))
"""Pixels, columns and depth of a block."""
SHARED = 3
"""The largest number of elements of the kernel's row per load; with one per load, sums are
wider."""
SUMS = 256 * 192
"""The largest number of elements of the sums of a block."""


@dataclass(frozen=True, slots=True)
class ShiftedConvolution(FusedConvolution):
    """A goal that is a `shifted_conv`: (n,c,h,w), (p,j,o,i,c), and its epilogue."""

    @staticmethod
    def alone(x: Node, w: Node, attrs: Mapping[str, Any]) -> Node:
        """The convolution of a term with these attributes in operators of ONNX, without its
        epilogue."""
        how: dict[str, Any] = {name: attrs[name] for name in ("strides", "pads", "dilations")}
        extra = attrs["extra"]
        whole = _dense(w, len(x.shape) - 2, bool(extra))
        if extra:
            return term("conv_transpose", x, whole, **how, output_padding=extra, group=1)
        return term("conv", x, whole, **how, group=1)

    def blocks(self) -> Iterator[tuple[int, ...]]:
        """Blocks whose sums fit, of no more columns than there are."""
        row, columns = int(self.node.args[1].shape[1]), int(self.node.args[1].shape[2])
        alone = bool(self.node.attr("strides")[-1] != 1)
        shared = (row,) if self.node.attr("extra") else (1,) if alone else (min(row, SHARED), 1)
        for (pixels, width, depth), together in product(TILES, dict.fromkeys(shared)):
            narrow = width == 32 or width < 2 * columns
            if narrow and pixels * width * together <= SUMS and not (width == 32 and columns > 64 and together < 4):
                yield pixels, width, depth, together

    def _small_operands(self) -> tuple[Node, Node]:
        x, w, *_ = self.node.args
        kernel = tuple(map(int, (*w.shape[3:-1], w.shape[1])))
        sides = small_transposed(self.node, kernel) if self.node.attr("extra") else small_sides(self.node, kernel)
        channels, columns = min(int(x.shape[1]), 2), min(int(w.shape[2]), 3)
        image = variable("x", Tensor("float32", (2, channels, *sides)))
        return image, variable("w", Tensor("float32", (*w.shape[:2], columns, *w.shape[3:-1], channels)))


def natural_weights(spatial: int, transposed: bool) -> tuple[int, ...]:
    """The permutation that makes weights of a shifted convolution (j,o,i,c) those of a convolution
    (o,c,i,j), or of a transposed one (c,o,i,j)."""
    kernel = (*range(2, spatial + 1), 0)
    return (spatial + 1, 1, *kernel) if transposed else (1, spatial + 1, *kernel)


def _dense(w: Node, spatial: int, transposed: bool) -> Node:
    """(p,j,o,i,c) -> the weights that a convolution has, or a transposed one."""
    return term("transpose", term("reduce_sum", w, axes=(0,), keepdims=0), perm=natural_weights(spatial, transposed))


def _in_parts(names: MatchedNames, model: Conversion) -> Node | None:
    """Weights in two parts; None where they are not finite."""
    spatial, transposed, w = len(names["pads"]) // 2, "extra" in names, names["w"]
    packed = _parts(model.weights[w.attr("name")].numpy(), transposed)
    if packed is None:
        return None

    def stands_for(made: Node) -> Node | None:
        return model.originals.get(_dense(made, spatial, transposed))

    own = model.weight("shifted", packed, w, stands_for)
    model.originals[_dense(own, spatial, transposed)] = w
    return own


def _parts(array: NDArray[np.generic], transposed: bool) -> NDArray[np.generic] | None:
    """Weights (o,c,i,j) as (2,j,o,i,c), of a transposed convolution from (c,o,i,j): the nearest
    numbers of TF32, and the remainders; None if they are not finite."""
    first = (1, 0) if transposed else (0, 1)
    kernel = range(2, array.ndim)
    turned = np.ascontiguousarray(array.transpose(kernel[-1], first[0], *kernel[:-1], first[1]))
    near = nearest_tf32(turned)
    return np.stack([near, turned - near]) if np.isfinite(near).all() else None


KIND = FusedKind(
    (
        *patterns("conv(x, w, strides=strides, pads=pads, dilations=dilations, group=1)"),
        *patterns(
            "conv_transpose(x, w, strides=strides, pads=pads, dilations=dilations, output_padding=extra, group=1)"
        ),
    ),
    lambda names: {"extra": tuple(names.get("extra", ()))},
    _in_parts,
)
PROGRAM = GpuProgram("shifted_conv", ShiftedBlock, StationaryBlock, (ROUNDED_TILES,))
FORM = fused_form(ShiftedConvolution, PROGRAM, KIND, in_parts=True)
