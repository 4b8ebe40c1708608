"""The kernel of one plugin, read from a custom node's attributes: the plan in text (its format is
in runtime/cpp/plan.h), the images, and the tensors of both at the model's sizes."""

from __future__ import annotations

import ast
import base64
import operator
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from math import prod

from taso_mirage.emit.compile import TensorMap
from taso_mirage.errors import InvalidModel, Unsupported
from taso_mirage.ir.terms import Tensor
from taso_mirage.runtime.plan import KernelImage
from taso_mirage.runtime.register import PLAN_FORMAT
from taso_mirage.system.wording import option

TYPES = {"float32": "FP32", "float16": "FP16"}
"""The dtypes that a plugin takes and gives, as TensorRT's Python interface names them."""
MOST_DIMS = 8
"""The largest number of dims of a TensorRT tensor."""


@dataclass(frozen=True, slots=True)
class PluginLaunch:
    """One kernel on the GPU.

    `arguments` name the tensors that it takes: i0 the first input, o0 the first output, s0 scratch
    memory. `cluster`: the number of blocks along the first dim of the grid that run as one.
    """

    grid: tuple[int, int, int]
    arguments: tuple[str, ...]
    images: tuple[KernelImage, ...]
    cluster: int = 1


@dataclass(frozen=True)
class PluginKernel:
    """One plugin: dense tensors of fixed sizes in row order, and launches in order.

    `plan` and `images` (in base64) are the node's.

    Raises Unsupported where TensorRT's interface cannot take it.
    """

    plan: str
    images: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    launches: tuple[PluginLaunch, ...]

    def __post_init__(self) -> None:
        for role, tensors in (("input", self.inputs), ("output", self.outputs)):
            for i, tensor in enumerate(tensors):
                _refuse(f"{role} {i}", tensor)

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits that identify a kernel and the sizes at which it is used."""
        return blake2b(repr((self.plan, self.images, self.inputs)).encode(), digest_size=8).hexdigest()


def _refuse(what: str, tensor: Tensor) -> None:
    if tensor.dtype not in TYPES:
        raise Unsupported(f"{what} is {tensor.dtype}; a TensorRT plugin takes and gives {' and '.join(TYPES)}")
    if len(tensor.shape or ()) > MOST_DIMS:
        raise Unsupported(f"{what} has {len(tensor.shape or ())} dims; a TensorRT tensor has {MOST_DIMS} at most")


HEAD = f"taso_mirage {PLAN_FORMAT} cuda"
PLAN = "plan"
"""The attribute that holds the text; `image_0`, `image_1`, ... hold the code in base64."""
LONGEST = 300
"""The largest number of shown characters of an error, which may quote the plan."""
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_Shapes = Sequence[Sequence[int] | None]


def kernel(name: str, attributes: Mapping[str, str], shapes: _Shapes) -> PluginKernel:
    """The kernel of the node `name`, whose inputs have `shapes` (None for one that is not known).

    Raises InvalidModel where the attributes are no plan, and Unsupported where its sizes or types
    are none for TensorRT.
    """
    try:
        head, *lines = _checked(attributes[PLAN]).splitlines()
        if head != HEAD:
            raise Unsupported(
                f"its plan is {head!r}, not {HEAD!r}; a plugin takes kernels for CUDA: optimize the model with {option('target', 'cuda')}"
            )
        return _kernel([line.split() for line in lines], attributes, shapes)
    except Unsupported as error:
        raise Unsupported(f"{name}: {str(error)[:LONGEST]}") from None
    except (KeyError, ValueError, IndexError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise InvalidModel(
            f"{name} has no plan that can be read ({type(error).__name__}: {str(error)[:LONGEST]})"
        ) from None


def _checked(text: str) -> str:
    """The text of a plan, whose last line must be the checksum of the other lines."""
    above, line, given = text.rstrip("\n").rpartition("check ")
    if not text.isascii() or not line or given != f"{zlib.crc32(above.encode()):08x}":
        raise ValueError("its last line is not its checksum: it was changed, or is truncated")
    return text


def _kernel(rows: Sequence[list[str]], attributes: Mapping[str, str], shapes: _Shapes) -> PluginKernel:
    def named(word: str) -> list[list[str]]:
        return [row[1:] for row in rows if row[0] == word]

    sizes = _bound([row[1:] for row in named("input")], shapes)

    def tensors(role: str) -> tuple[Tensor, ...]:
        return tuple(Tensor(dtype, tuple(_value(text, sizes) for text in dims)) for dtype, *dims in named(role))

    images: dict[int, list[KernelImage]] = {}
    texts = [attributes[f"image_{i}"] for i, _ in enumerate(named("image"))]
    for row, text, maps in zip(named("image"), texts, _followed(rows, "image", "map"), strict=True):
        made = _image(row, text, tuple([_map(fields, sizes) for fields in maps]))
        images.setdefault(made.kernel, []).append(made)
    kernels = list(enumerate(zip(named("kernel"), _followed(rows, "kernel", "cluster"), strict=True)))
    launches = tuple(
        PluginLaunch(
            (_value(x, sizes), _value(y, sizes), _value(z, sizes)),
            tuple(given),
            tuple(images[i]),
            int(cluster[0][0]) if cluster else 1,
        )
        for i, ((x, y, z, *given), cluster) in kernels[_chosen(rows, sizes)]
    )
    return PluginKernel(attributes[PLAN], tuple(texts), tensors("input"), tensors("output"), launches)


def _followed(rows: Sequence[list[str]], head: str, other: str) -> list[list[list[str]]]:
    """For each line that begins with `head`, the lines after it that begin with `other`."""
    found: list[list[list[str]]] = []
    for word, *fields in rows:
        if word == head:
            found.append([])
        elif word == other:
            found[-1].append(fields)
    return found


def _chosen(rows: Sequence[list[str]], sizes: Mapping[str, int]) -> slice:
    """The range of the kernels for these sizes."""
    start = end = 0
    for word, *fields in rows:
        end += word == "kernel"
        if word == "range":
            if prod(sizes.values()) <= int(fields[0]):
                return slice(start, end)
            start = end
    return slice(start, None)


def _image(row: Sequence[str], text: str, maps: tuple[TensorMap, ...]) -> KernelImage:
    kernel, capability, kind, symbol, warps, shared, hidden, overlap, length, checksum = row
    if not re.fullmatch(r"[A-Za-z_]\w*", symbol, re.ASCII):  # it goes into generated source
        raise ValueError(f"{symbol!r} is no name of a function")
    content = base64.b64decode(text, validate=True)
    if len(content) != int(length) or f"{zlib.crc32(content):08x}" != checksum:
        raise ValueError(
            f"the image of {symbol} has {len(content)} bytes, not the {length} of the plan: it was changed"
        )
    launch = symbol, int(warps), int(shared), int(hidden), overlap == "1"
    return KernelImage(int(kernel), int(capability), content, *launch, kind == "ptx", maps)


def _map(fields: Sequence[str], sizes: Mapping[str, int]) -> TensorMap:
    argument, *places, swizzle, outside = fields
    shape, strides, box = (tuple([_value(text, sizes) for text in each.split(",")]) for each in places)
    return TensorMap(int(argument), shape, strides, box, int(swizzle), outside == "nan")


def _bound(inputs: Sequence[Sequence[str]], shapes: _Shapes) -> dict[str, int]:
    """The values of the named sizes in this model; known shapes must be those of the plan."""
    sizes: dict[str, int] = {}
    for i, (dims, shape) in enumerate(zip(inputs, shapes, strict=True)):
        for text, n in zip(dims, shape, strict=True) if shape is not None else ():
            known = sizes.setdefault(text, n) if text.isidentifier() else int(text)
            if known != n:
                raise ValueError(f"input {i} is {shape} in the model, the plan has {n} for {text}, which is {known}")
    return sizes


def _value(text: str, sizes: Mapping[str, int]) -> int:
    return _evaluated(ast.parse(text, mode="eval").body, sizes)


def _evaluated(tree: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return tree.value
    if isinstance(tree, ast.Name):
        if tree.id not in sizes:
            raise Unsupported(
                f"the size {tree.id} is not fixed in the model; fix its dynamic dims with {option('shape')}"
            )
        return sizes[tree.id]
    if isinstance(tree, ast.BinOp):
        a, b = _evaluated(tree.left, sizes), _evaluated(tree.right, sizes)
        if isinstance(tree.op, ast.Div) and b and a % b == 0:
            return a // b
        if isinstance(tree.op, ast.FloorDiv) and b > 0:
            return a // b
        if type(tree.op) in OPERATORS:
            return int(OPERATORS[type(tree.op)](a, b))
    raise ValueError(f"{ast.unparse(tree)} is no size")
