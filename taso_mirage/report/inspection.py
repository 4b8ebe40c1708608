"""The content of a model, and the facilities of this machine, as data and as text: `inspect` and
`doctor`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.table import Table

from taso_mirage.devices.cpu.compiler import compiler
from taso_mirage.devices.cuda.device import gpu
from taso_mirage.errors import RuntimeUnavailable, TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node
from taso_mirage.measure.refusals import shown_sizes
from taso_mirage.onnx_io.kernels import CarriedKernel
from taso_mirage.operators.additions import operator_files
from taso_mirage.operators.work import size, sized, work
from taso_mirage.plugins import GROUPS, plugins
from taso_mirage.rewriting import library
from taso_mirage.system.console import Console
from taso_mirage.system.terminal import plural
from taso_mirage.system.wording import option
from taso_mirage.targets.cuda.target import CUDA
from taso_mirage.version import __version__

LISTED = 8
"""The largest number of sizes that `inspect` lists as text."""


def inspection(model: Model, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The content of a model as JSON data: terms by operator with their work, inputs, outputs, and
    opaque nodes."""
    rows: dict[str, dict[str, float]] = {}
    opaque: Counter[tuple[str, str]] = Counter()
    counted_work = CountedWork(sizes)
    for node in model.nodes():
        if node.op == "opaque":
            opaque[(str(node.attr("call")), model.opaque.get(node, ""))] += 1
        elif node.args and node.op != "item":
            row = rows.setdefault(node.op, {"count": 0, "flops": 0, "bytes": 0})
            flops, moved = counted_work(node)
            row["count"] += 1
            row["flops"] += flops
            row["bytes"] += moved
    weights = [n for n in model.nodes() if n.op == "weight"]
    return {
        "opsets": dict(model.opsets),
        "inputs": {n.attr("name"): str(n.type) for n in model.graph.inputs},
        "outputs": {k: str(n.type) for k, n in zip(model.output_names, model.graph.outputs, strict=True)},
        "sizes": dict(sizes),
        "weights": {"count": len(weights), "bytes": sum(_bytes(n) for n in weights)},
        "operators": dict(sorted(rows.items(), key=lambda item: -item[1]["flops"])),
        "opaque": [{"node": op, "reason": why, "count": n} for (op, why), n in opaque.most_common()],
    }


class CountedWork:
    """Operations and bytes of terms at these sizes, none if they are unknown. They are counted once
    for all terms with equal operator, attributes and types."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self._known: dict[tuple[Any, ...], tuple[int, int]] = {}

    def __call__(self, node: Node) -> tuple[int, int]:
        key = node.op, node.attrs, tuple([a.type for a in node.args])
        if key not in self._known:
            self._known[key] = self._count(node)
        return self._known[key]

    def _count(self, node: Node) -> tuple[int, int]:
        try:
            counted = work(node, self.sizes)
        except (TasoMirageError, LookupError, TypeError, ValueError):
            return 0, 0
        return counted.flops, counted.bytes


def _bytes(node: Node) -> int:
    try:
        return size(sized(node.type, {}))
    except TypeError:
        return 0


def show_inspection(found: Mapping[str, Any], source: Path) -> None:
    """`inspect` as tables."""
    console = Console()
    opsets = ", ".join(f"{k or 'ai.onnx'} {v}" for k, v in found["opsets"].items())
    console.print(f"{source.name}: opset {opsets}", highlight=False, markup=False)
    for kind in ("inputs", "outputs"):
        for name, type in found[kind].items():
            console.print(f"  {kind[:-1]} {name}: {type}", highlight=False, markup=False)
    if found["sizes"]:
        listed = dict([*found["sizes"].items()][:LISTED])
        more = f" and {len(found['sizes']) - LISTED} more" if len(found["sizes"]) > LISTED else ""
        console.print(f"  sizes used for the counts below: {shown_sizes(listed)}{more}", highlight=False, markup=False)
    weights = found["weights"]
    console.print(f"  {weights['count']} weights, {quantity(weights['bytes'], 'B')}", highlight=False)
    table = Table()
    for name in ("operator", "count", "flops", "bytes"):
        table.add_column(name, justify="left" if name == "operator" else "right")
    for op, row in found["operators"].items():
        table.add_row(op, str(row["count"]), quantity(row["flops"], ""), quantity(row["bytes"], "B"))
    console.print(table)
    if found["opaque"]:
        table = Table(title="opaque: kept as they are", title_justify="left")
        for name in ("node", "count", "why"):
            table.add_column(name, overflow="fold")
        for row in found["opaque"]:
            table.add_row(row["node"], str(row["count"]), row["reason"])
        console.print(table, markup=False)


def show_kernels(kernels: Sequence[CarriedKernel]) -> Iterator[str]:
    """The kernels of a model with their plans and programs, as lines."""
    yield plural(len(kernels), "fused kernel")
    for each in kernels:
        more = ", ..." if len(each.places) > LISTED else ""
        yield ""
        yield f"{each.name} ({each.target}): {' '.join(each.operators)}"
        yield f"    {plural(len(each.places), 'place')}: {', '.join(each.places[:LISTED])}{more}"
        yield "    plan:"
        yield from (f"        {line}" for line in each.plan.splitlines())
        yield "    program:" if each.source else "    the file does not have its program"
        yield from each.source.splitlines()


def quantity(value: float, unit: str) -> str:
    """`12.3 MB`."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.0f} {unit}".strip()


def versions() -> dict[str, str]:
    """The versions of the packages that a result depends on."""
    import ml_dtypes
    import numpy
    import onnx
    import onnx_ir

    from taso_mirage.measure import session

    return {
        "numpy": numpy.__version__,
        "onnx": onnx.__version__,
        "onnx-ir": onnx_ir.__version__,
        "onnxruntime": session.child_version(),
        "ml_dtypes": ml_dtypes.__version__,
    }


RUNTIME = re.compile(
    r"(ort-nightly|onnxruntime)(-gpu|-openvino|-directml|-qnn|-training|-rocm|-migraphx|-cann|-azure)?"
)
"""The names of packages that contain ONNX Runtime."""
OTHERS = (
    "several builds of ONNX Runtime are installed ({}), of which the last one that was installed is imported, with files of the "
    "others: pip uninstall -y {}, and install one again"
)


def runtime_wheels() -> list[str]:
    """The installed packages that contain ONNX Runtime, with their versions; more than one
    overwrite each other's files."""
    from importlib.metadata import distributions

    wheels = {(each.name.lower(), each.version) for each in distributions() if each.name}
    return [f"{name} {version}" for name, version in sorted(wheels) if RUNTIME.fullmatch(name)]


def diagnosis() -> dict[str, Any]:
    """Versions, working providers, and the cost cache."""
    import platform

    from taso_mirage.measure import session
    from taso_mirage.measure.cost_cache import cache_path
    from taso_mirage.operators.ops import data_folder, load_specs
    from taso_mirage.rewriting.text import laws

    working = session.working_providers()
    path = cache_path()
    return {
        "taso-mirage": __version__,
        "python": platform.python_version(),
        "versions": versions(),
        "device": session.device(),
        "gpu": None if (found := gpu()) is None else found.name,
        "compiler": _compiler(),
        "providers": {p: p in working for p in session.child_providers()},
        "operators": len(load_specs()),
        "laws": len(laws()),
        "substitutions": len(library.load_rules()),
        "plugins": [f"{each.name} ({each.group}, {each.package})" for group in GROUPS for each in plugins(group)],
        "op_specs": str(data_folder("op_specs")),
        "operator_files": [str(file) for file in operator_files()],
        "runtime_wheels": runtime_wheels(),
        "cache": {"path": str(path), "bytes": path.stat().st_size if path.exists() else 0, "entries": _entries(path)},
    }


def _compiler() -> str | None:
    """The command of the C++ compiler; None if there is none."""
    try:
        return " ".join(compiler())
    except RuntimeUnavailable:
        return None


def _gpu_line(found: Mapping[str, Any]) -> str:
    """The GPU, and the next step if ONNX Runtime does not use it."""
    name, works = found["gpu"], found["providers"].get(CUDA.provider)
    if name is None:
        return f"GPU: no NVIDIA GPU with a driver; {option('target', CUDA.name)} does not run here"
    if works is None:
        return f"GPU: {name}; this build of ONNX Runtime is for CPUs: install the extra `cuda` in a new environment"
    return f"GPU: {name}" + ("" if works else "; ONNX Runtime does not start on it: install the extra `cuda`")


def _wheel_lines(wheels: Sequence[str]) -> Iterator[str]:
    """The package that ONNX Runtime is from; with several, that they disturb each other."""
    if len(wheels) > 1:
        yield OTHERS.format(" and ".join(wheels), " ".join(wheel.split()[0] for wheel in wheels))
    elif wheels:
        yield f"ONNX Runtime is from the package {wheels[0]}"


def _entries(path: Path) -> int:
    from taso_mirage.measure.cost_cache import CostCache

    with closing(CostCache(path if path.exists() else None)) as cache:
        return cache.entries()


def show_diagnosis(found: Mapping[str, Any]) -> None:
    """`doctor` as text."""
    console = Console()
    lines = [f"taso-mirage {found['taso-mirage']}, Python {found['python']}, {found['device']}"]
    lines += [f"  {name} {version}" for name, version in found["versions"].items()]
    lines += _wheel_lines(found["runtime_wheels"])
    lines += ["execution providers:"]
    lines += [f"  {p}: {'works' if ok else 'does not start on this machine'}" for p, ok in found["providers"].items()]
    lines += [_gpu_line(found)]
    lines += [
        f"C++ compiler: {found['compiler'] or 'none, so there are no fused kernels for a CPU; install g++ or clang++'}"
    ]
    lines += [f"{found['operators']} operators and {found['laws']} laws from {found['op_specs']}"]
    lines += [f"{found['substitutions']} generated substitutions"]
    lines += [f"operators of {file}" for file in found["operator_files"]]
    lines += [f"plug-in {each}" for each in found["plugins"]]
    cache = found["cache"]
    lines += [f"cost cache: {cache['path']}, {cache['entries']} measurements, {cache['bytes']} bytes"]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
