"""The README of an exported folder: its content, and the commands that build, run and check it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from taso_mirage.ir.terms import Tensor
from taso_mirage.runtime.tensorrt.plugin_attributes import PluginKernel, PluginLaunch
from taso_mirage.runtime.tensorrt.plugin_model import Models

OLDEST_PARSER = 17
"""The newest opset that the ONNX parser of TensorRT 8.6 takes."""


def readme(made: Models, inputs: Iterable[str], outputs: Iterable[str], missing: Mapping[str, str]) -> str:
    """The text for a model's plugins; `inputs` and `outputs` are its tensors, `missing` says which
    kernels have no Python plugin."""
    opset = next((each.version for each in made.plugin.opset_import if each.domain in ("", "ai.onnx")), 0)
    return TEXT.format(
        plugins="\n".join(
            f"| `{name}` | {_types(k.inputs)} | {_types(k.outputs)} | {_launches(k)} |"
            for name, k in made.kernels.items()
        ),
        feed=shlex.quote(",".join(f"{name}:samples/input{i}.bin" for i, name in enumerate(inputs))),
        outputs=", ".join(f"`{name}`" for name in outputs),
        python=_python(made.kernels, missing),
        old=""
        if opset <= OLDEST_PARSER
        else f" This model has opset {opset}, which its parser does not read: export it with {OLDEST_PARSER} or less.",
    )


def _types(tensors: Iterable[Tensor]) -> str:
    return ", ".join(f"{t.dtype}{list(t.shape or ())}" for t in tensors)


def _launches(kernel: PluginKernel) -> str:
    return "; ".join(f"{'x'.join(map(str, each.grid))} blocks ({_architectures(each)})" for each in kernel.launches)


def _architectures(launch: PluginLaunch) -> str:
    return ", ".join(f"{'PTX for ' if image.ptx else ''}sm_{image.capability}" for image in launch.images)


def _python(kernels: Mapping[str, PluginKernel], missing: Mapping[str, str]) -> str:
    if len(missing) == len(kernels):
        return "No kernel of this model can be a Python plugin:\n\n" + _reasons(missing)
    if missing:
        return (
            "Only some kernels of this model can be Python plugins, so this way alone does not run it. These cannot:\n\n"
            + _reasons(missing)
        )
    return (
        "`import plugin_in_python` registers the same plugins with `tensorrt.plugin` (TensorRT 10.9 or newer), before the model "
        "is parsed. TensorRT\nkeeps their PTX in the engine, and the engine then runs without the library and without Python. "
        "Machine code made for one\narchitecture, as the library has it, can be faster. Use one of both, not both."
    )


def _reasons(missing: Mapping[str, str]) -> str:
    return "\n".join(f"- `{name}`: {reason}" for name, reason in missing.items())


TEXT = """# TensorRT plugins

Written by `taso-mirage export-plugin`. `model.onnx` uses the plugins below; `reference.onnx` is the same model as plain ONNX,
to compare with.

| plugin | inputs | outputs | launches |
|---|---|---|---|
{plugins}

Sizes and types are fixed: other ones are refused with a line in TensorRT's log. Memory is dense, in row order (format LINEAR).
Files of different exports do not mix: a digest in every node is checked.

## Build

    cmake -S . -B build -DTENSORRT_INCLUDE_DIR=/usr/include/x86_64-linux-gnu
    cmake --build build

That needs a C++17 compiler, the public headers of the TensorRT that will load the library (8.6, 10 or 11), and
`cuda_runtime_api.h`, which they include (`-DCUDA_INCLUDE_DIR=...` where it is not found). Nothing of TensorRT or CUDA is linked;
the driver is opened at run time.

## Run

    trtexec --onnx=model.onnx --dynamicPlugins=build/libtaso_mirage_plugin.so --stronglyTyped --saveEngine=model.plan \\
        --loadInputs={feed} --exportOutput=output.json
    python check_samples.py output.json

    trtexec --loadEngine=model.plan --dynamicPlugins=build/libtaso_mirage_plugin.so --useCudaGraph
    trtexec --onnx=reference.onnx --stronglyTyped --useCudaGraph

The second command checks the outputs ({outputs}) against `samples/`, which ONNX Runtime made on a CPU from `reference.onnx`. The last
two time the engine with the plugins and without. TensorRT 11 is always strongly typed: leave `--stronglyTyped` out. With
TensorRT 8.6 write `--fp16` in its place.{old}

`--staticPlugins` only opens a library and leaves it to register itself, which this one does not; `--dynamicPlugins` asks the
registry to load it. In a program:

- C++: `getPluginRegistry()->loadLibrary("build/libtaso_mirage_plugin.so")`
- Python: `trt.get_plugin_registry().load_library("build/libtaso_mirage_plugin.so")`

## In Python, without the library

{python}
"""
