"""A Python module with the same plugins for `tensorrt.plugin`, compiled ahead of time: TensorRT
stores the PTX in the engine and needs no library.

TensorRT launches one kernel for a plugin, with the inputs and then the outputs as its arguments, so
kernels that need more are left to the C++ library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from textwrap import indent

from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Tensor
from taso_mirage.runtime.plan import KernelImage
from taso_mirage.runtime.tensorrt.plugin_attributes import TYPES, PluginKernel
from taso_mirage.runtime.tensorrt.plugin_source import NAMESPACE

SHARED_ALWAYS = 48 * 1024
"""The bytes of shared memory of a launch without an explicit request, which TensorRT is not known
to make."""
MODULE = "plugin_in_python.py"


def module(kernels: Mapping[str, PluginKernel]) -> tuple[str, dict[str, str]]:
    """The module's source, and by the plugin's name why a kernel is not in it."""
    parts, left = [HEADER], {}
    for name, kernel in kernels.items():
        try:
            parts.append(_plugin(name, kernel))
        except Unsupported as error:
            left[name] = str(error)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n", left


def _plugin(name: str, kernel: PluginKernel) -> str:
    image, ptx = _single(kernel)
    inputs = [f"x{i}" for i in range(len(kernel.inputs))]
    outputs = ", ".join(f"trtp.from_shape_expr({_shape(t)}, {_dtype(t)})" for t in kernel.outputs)
    x, y, z = kernel.launches[0].grid
    types = ", ".join(TYPES[t.dtype] for t in (*kernel.inputs, *kernel.outputs))
    return TEMPLATE.format(
        name=name,
        id=f"{NAMESPACE}::{name}",
        arguments=", ".join(f"{each}: trtp.TensorDesc" for each in inputs),
        descs=", ".join(["trtp.TensorDesc"] * len(kernel.outputs)),
        digest=kernel.digest,
        inputs=", ".join([*inputs, ""]).rstrip(),
        shapes=", ".join([*map(_shape, kernel.inputs), ""]).rstrip(),
        types=types,
        dtypes=", ".join([*map(_dtype, kernel.inputs), ""]).rstrip(),
        outputs=outputs + ",",
        symbol=image.symbol,
        ptx=_literal(ptx),
        launch=f"grid_x={x}, grid_y={y}, grid_z={z}, block_x={32 * image.warps}, shared_mem={image.shared}",
    )


def _single(kernel: PluginKernel) -> tuple[KernelImage, str]:
    """The one image in PTX, with its parameters in the order of TensorRT.

    Raises Unsupported where there is none.
    """
    if len(kernel.launches) != 1:
        raise Unsupported(f"it has {len(kernel.launches)} kernels, and TensorRT launches one")
    launch = kernel.launches[0]
    image = next((image for image in launch.images if image.ptx), None)
    if image is None:
        raise Unsupported("it has no PTX")
    if image.shared > SHARED_ALWAYS:
        raise Unsupported(f"it takes {image.shared} bytes of shared memory, more than {SHARED_ALWAYS}")
    if launch.cluster != 1:
        raise Unsupported("its blocks run in clusters, which TensorRT does not launch")
    if image.maps:
        raise Unsupported("it takes tensor maps, which TensorRT does not make")
    if image.overlap:
        raise Unsupported("it waits for the kernel before it, which TensorRT does not launch so")
    wanted = [f"i{i}" for i in range(len(kernel.inputs))] + [f"o{i}" for i in range(len(kernel.outputs))]
    if len(set(launch.arguments)) != len(launch.arguments) or not set(launch.arguments) <= set(wanted):
        raise Unsupported(f"its arguments are {' '.join(launch.arguments)}, TensorRT has {' '.join(wanted)}")
    order = [launch.arguments.index(each) if each in launch.arguments else None for each in wanted]
    try:
        return image, reordered(image.content.decode("ascii"), image.symbol, order)
    except UnicodeDecodeError:
        raise Unsupported("its PTX is no text") from None


def reordered(ptx: str, symbol: str, order: Sequence[int | None]) -> str:
    """PTX whose entry takes its parameters in `order`, by their old numbers, None for one that it
    does not read.

    Parameters have names, so only the list changes. Raises Unsupported where one that is left out
    is read.
    """
    entry = re.search(rf"\.entry\s+{re.escape(symbol)}\s*\(([^)]*)\)", ptx)
    if entry is None:
        raise Unsupported(f"its PTX has no entry {symbol}")
    old = [each.strip() for each in entry[1].split(",")]
    body = ptx[entry.end() :]
    for i, each in enumerate(old):
        if i not in order and re.search(rf"\b{re.escape(each.split()[-1])}\b", body):
            raise Unsupported(f"its PTX reads parameter {i}, which TensorRT does not pass")
    new = [old[i] if i is not None else f".param .u64 {symbol}_unused_{k}" for k, i in enumerate(order)]
    return ptx[: entry.start(1)] + "\n" + indent(",\n".join(new), "\t") + "\n" + ptx[entry.end(1) :]


def _literal(text: str) -> str:
    """Text as Python source, with one line per line, so that its content stays text."""
    return "\n".join(f"    {line!a}" for line in text.splitlines(keepends=True))


def _shape(tensor: Tensor) -> str:
    return f"({', '.join([*(str(n) for n in tensor.shape or ()), '']).rstrip()})"


def _dtype(tensor: Tensor) -> str:
    return f"trt.{tensor.dtype}"


HEADER = '''
"""Generated by taso-mirage export-plugin: import it before the model is parsed. It needs TensorRT 10.9 or newer.

    import plugin_in_python  # registers the plugins
    parser.parse_from_file("model.onnx")
"""

import tensorrt as trt
import tensorrt.plugin as trtp


def _check(name, descs, shapes, dtypes):
    """Sizes and types are fixed; a shape is not there yet where TensorRT only asks for types."""
    for i, (desc, shape, dtype) in enumerate(zip(descs, shapes, dtypes, strict=True)):
        if desc.dtype != dtype:
            raise ValueError(f"{name}: input {i} is {desc.dtype}, the kernel takes {dtype}")
        dims = list(desc.shape_expr)
        if len(dims) != len(shape):
            raise ValueError(f"{name}: input {i} has {len(dims)} dims, the kernel was made for {len(shape)}")
        for dim, n in zip(dims, shape, strict=True):
            if not dim.is_fake and not (dim.is_constant and dim.constant_value() == n):
                raise ValueError(f"{name}: input {i} is not of the sizes {shape} that the kernel was made for")
'''
TEMPLATE = """
# {name}

PTX_{name} = (
{ptx}
)


@trtp.register("{id}")
def {name}({arguments}, digest: str) -> tuple[{descs}]:
    if digest.rstrip("\\0") != "{digest}":
        raise ValueError(f"{name}: the model is for the kernels {{digest}}, this module has {digest}")
    _check("{name}", ({inputs}), ({shapes}), ({dtypes}))
    return ({outputs})


@trtp.autotune("{id}")
def autotune_{name}({arguments}, outputs: tuple[{descs}]) -> list[trtp.AutoTuneCombination]:
    return [trtp.AutoTuneCombination("{types}", "LINEAR")]


@trtp.aot_impl("{id}")
def aot_{name}(
    {arguments}, digest: str, outputs: tuple[{descs}], tactic: int
) -> tuple[str | bytes, str | bytes, trtp.KernelLaunchParams, trtp.SymExprs]:
    params = trtp.KernelLaunchParams({launch})
    return "{symbol}", PTX_{name}, params, trtp.SymIntExprs(0)
"""
