"""Compiled C++ kernels beside their goals in float64, with all warnings of the compiler."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from taso_mirage.devices.cpu.compiler import compiler
from taso_mirage.emit.cpp import generate_all
from taso_mirage.emit.cpu.native_kernel import FLAGS, NATIVE, NativeKernel
from taso_mirage.emit.cpu.nests import C_TYPES
from taso_mirage.emit.cpu.prepared import prepares
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.meanings.reals import EXACT
from taso_mirage.operators.interpret import interpret

STRICT = (*NATIVE, "-Wall", "-Wextra", "-Werror")


def values(graph: Graph, seed: int = 0, scale: float = 1) -> dict[Node, Any]:
    rng = np.random.default_rng(seed)
    return {x: (scale * rng.standard_normal([int(n) for n in x.shape])).astype(x.dtype) for x in graph.inputs}


def exact(graph: Graph, given: dict[Node, Any]) -> list[Any]:
    with np.errstate(all="ignore"):
        found = interpret(graph.outputs, EXACT, {x: EXACT.load(v) for x, v in given.items()})
    return [found[o] for o in graph.outputs]


def computes(made: NativeKernel, goal: Graph, given: dict[Node, Any], tolerance: float = 3e-6) -> bool:
    """Whether a kernel's results have the shapes of its goal's, and errors of at most `tolerance`
    times the largest element."""
    return all(
        output.shape == wanted.shape and bool(np.abs(output - wanted).max() <= tolerance * np.abs(wanted).max())
        for output, wanted in zip(made(*given.values()), exact(goal, given), strict=True)
    )


QUICK = ("-march=native", "-O0", "-Wall", "-Wextra", "-Werror")


def complaints(graphs: Mapping[str, Graph], folder: Path, values: Sequence[str] = ("0",)) -> str:
    """The errors that sanitizers report of kernels, on inputs that are one of these numbers
    everywhere."""
    calls = "".join(_call(name, graph) for name, graph in graphs.items())
    main = f"#include <algorithm>\n#include <cstdlib>\nint main(int, char** given) {{\n{calls}  return 0;\n}}\n"
    (folder / "main.cpp").write_text(generate_all(graphs) + main)
    flags = [*FLAGS, "-march=native", "-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([*compiler(), *flags, "-o", folder / "main", folder / "main.cpp"], check=True)
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    runs = [subprocess.run([folder / "main", v], capture_output=True, text=True, env=environment) for v in values]
    return "".join(done.stderr + f"exit code {done.returncode}" for done in runs if done.returncode)


def _call(name: str, graph: Graph) -> str:
    """C++ that runs a kernel in memory of its tensors' sizes."""
    counts = [int(np.prod([int(n) for n in term.shape])) for term in (*graph.inputs, *graph.outputs)]
    types = [C_TYPES.get(leaf.dtype, "uint8_t") for leaf in graph.inputs]
    pairs = zip(types, counts, strict=False)
    given = ", ".join(f"std::fill_n(new {t}[{n}], {n}, static_cast<{t}>(std::atof(given[1]))) - {n}" for t, n in pairs)
    aligned = [
        f"std::aligned_alloc(64, ({size} + 63) / 64 * 64)" for size in (f"{name}_prepared[0]", f"{name}_scratch()")
    ]
    prepared = (
        f"    void* prepared = {aligned[0]};\n    {name}_prepare(inputs, prepared);\n"
        f"    inputs[{len(counts) - 1}] = prepared;\n"
    )
    return (
        f"  {{\n    const void* inputs[] = {{{given}, nullptr}};\n    void* outputs[] = {{new float[{counts[-1]}]}};\n"
        f"{prepared if any(map(prepares, graph)) else ''}"
        f"    {name}(inputs, outputs, {aligned[1]}, nullptr, nullptr);\n  }}\n"
    )
