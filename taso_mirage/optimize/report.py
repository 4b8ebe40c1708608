"""What users see: the progress of the stages, and the results as tables or JSON."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from taso_mirage import __version__, library
from taso_mirage.errors import TasoMirageError
from taso_mirage.ir import Node
from taso_mirage.meanings.work import sized, work
from taso_mirage.model import Model
from taso_mirage.optimize.check import shown
from taso_mirage.optimize.pipeline import Result
from taso_mirage.optimize.search import Statistics
from taso_mirage.optimize.timing import Timing


class Stages:
    """Progress on stderr, one line a stage with the time elapsed and left; silent when stderr is no terminal."""

    def __init__(self, quiet: bool = False) -> None:
        console = Console(stderr=True)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.progress = Progress(*columns, console=console, disable=quiet or not sys.stderr.isatty())
        self.tasks: dict[str, TaskID] = {}
        self.current: str | None = None

    def __enter__(self) -> Stages:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        self.progress.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self.current:
            self._finish()
            self.current = stage
        if stage not in self.tasks:
            self.tasks[stage] = self.progress.add_task(stage, total=total or None)
        self.progress.update(self.tasks[stage], completed=done, total=total or None)

    def _finish(self) -> None:
        if self.current is not None:
            self.progress.update(self.tasks[self.current], completed=1, total=1)


def as_dict(result: Result, source: Path, written: Sequence[Path]) -> dict[str, Any]:
    """The result as JSON data; times in seconds."""
    timing = result.timing
    return {
        "model": str(source),
        "written": [str(p) for p in written],
        "changed": result.changed,
        "target": {
            "name": result.target.name,
            "provider": result.target.provider,
            "options": dict(result.target.options),
        },
        "nodes": {"before": result.terms_before, "after": result.terms_after},
        "cost": {"before": result.cost_before, "after": result.cost_after},
        "time": None if timing is None else _timing_data(timing),
        "sizes": [
            {"sizes": dict(sizes), "share": share, "time": None if each is None else _timing_data(each)}
            for sizes, share, each in by_sizes(result)
        ],
        "equations": dict(result.equations),
        "check": [
            {
                "case": d.case,
                "output": d.output,
                "error": d.error if math.isfinite(d.error) else None,
                "own_error": d.own,
                "bound": d.bound,
                "passed": d.passed,
            }
            for d in result.differences
        ],
        "search": {
            "parts": result.statistics.parts,
            "distinct_parts": result.statistics.distinct,
            "states": result.statistics.states,
            "matches": result.statistics.matches,
            "ended": dict(result.statistics.ended),
            "extraction": _extraction_data(result.statistics),
        },
        "seconds": dict(result.seconds),
        "notes": list(result.notes),
        "version": __version__,
    }


def _timing_data(timing: Timing) -> dict[str, Any]:
    return {
        "before": timing.original,
        "after": timing.optimized,
        "ratio": timing.ratio,
        "quartiles": [timing.low, timing.high],
        "runs": timing.runs,
    }


def _extraction_data(statistics: Statistics) -> dict[str, Any] | None:
    gaps = statistics.gaps
    return {"parts": len(gaps), "exact": gaps.count(0.0), "gap": max(gaps)} if gaps else None


def by_sizes(result: Result) -> Iterator[tuple[Mapping[str, int], float, Timing | None]]:
    """Every set of sizes, its share, and the times there."""
    each = () if result.timing is None else result.timing.each or (result.timing,)
    for (sizes, share), timing in zip_longest(result.workloads, each):
        yield sizes, share, timing


def search_facts(result: Result) -> dict[str, str]:
    """What the search did, by its name."""
    statistics = result.statistics
    facts = {
        "parts": f"{statistics.parts}, {statistics.distinct} distinct",
        "e-nodes" if statistics.gaps else "states": str(statistics.states),
        "matches": str(statistics.matches),
        "seconds": f"{result.seconds.get('search', 0.0):.2f}",
    }
    if statistics.ended:
        facts["ended"] = ", ".join(f"{why} ({count})" for why, count in statistics.ended.items())
    if statistics.gaps:
        exact = statistics.gaps.count(0.0)
        facts["extraction"] = f"exact in {exact} of {len(statistics.gaps)}"
        if max(statistics.gaps) > 0:
            facts["extraction"] += f", a better one could save at most {max(statistics.gaps):.1%} of a part"
    return facts


def show(result: Result, source: Path, written: Sequence[Path]) -> None:
    """The table at the end of `optimize`."""
    console = Console()
    table = Table(title=source.name, title_justify="left")
    for name, justify in (("", "left"), ("original", "right"), ("optimized", "right"), ("ratio", "right")):
        table.add_column(name, justify="left" if justify == "left" else "right")
    table.add_row("nodes", str(result.terms_before), str(result.terms_after), "")
    table.add_row("predicted cost", _time(result.cost_before), _time(result.cost_after), _ratio(result))
    if result.timing is not None:
        table.add_row("measured time", *_times(result.timing))
        if result.timing.each:
            for sizes, share, timing in by_sizes(result):
                table.add_row(escape(f"  {shown(sizes)} ({share:.0%})"), *_times(timing))
    console.print(table)
    _show_equations(console, result)
    if result.statistics.parts:
        facts = "; ".join(f"{name} {text}" for name, text in search_facts(result).items())
        console.print(f"search: {facts}", highlight=False, markup=False)
    _show_check(console, result)
    for note in result.notes:
        console.print(f"note: {note}", style="yellow", highlight=False, markup=False)
    if not result.changed:
        console.print("The original's graph was kept.", highlight=False)
    if result.target.gpu:
        options = {**dict(result.target.options), "enable_cuda_graph": "1"}
        console.print(
            f"measured with providers=[({result.target.provider!r}, {options})]", highlight=False, markup=False
        )
    console.print(f"wrote {', '.join(map(str, written))}", highlight=False, soft_wrap=True, markup=False)


def _times(timing: Timing | None) -> tuple[str, ...]:
    if timing is None:
        return ()
    ratio = f"{timing.ratio:.2f} [{timing.low:.2f}, {timing.high:.2f}]"
    return _time(timing.original), _time(timing.optimized), ratio


def _ratio(result: Result) -> str:
    return f"{result.cost_before / result.cost_after:.2f}" if result.cost_after else ""


def _show_equations(console: Console, result: Result) -> None:
    if not result.equations or not result.changed:
        return
    table = Table(title="applied substitutions", title_justify="left", show_header=False)
    table.add_column(justify="right")
    table.add_column()
    table.add_column(overflow="fold")
    texts = _law_texts()
    for name, count in result.equations.items():
        table.add_row(str(count), name, _shortened(texts.get(name.rstrip("~"), "weights computed ahead"), name))
    console.print(table, highlight=False, markup=False)


def _law_texts() -> dict[str, str]:
    from taso_mirage.optimize.pipeline import rules
    from taso_mirage.text import show_equation

    return {each.name: show_equation(each) for each in rules()}


def _shortened(text: str, name: str) -> str:
    """The equation without its guard, in the direction it was taken, at a length that a table bears."""
    equation = text.partition(" where ")[0]
    if name.endswith("~"):
        equation = " == ".join(reversed(equation.split(" == ")))
    return equation if len(equation) <= 150 else equation[:147] + "..."


def _show_check(console: Console, result: Result) -> None:
    if not result.differences:
        return
    passed = sum(d.passed for d in result.differences)
    worst = max(result.differences, key=lambda d: d.error / d.bound if d.bound else d.error)
    cases = len({d.case for d in result.differences})
    console.print(
        f"check: {passed} of {len(result.differences)} outputs on {cases} input sets within the bound; "
        f"the tightest: error {worst.error:.2g}, bound {worst.bound:.2g}",
        highlight=False,
        markup=False,
    )


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


# ---------------------------------------------------------------- inspect and doctor


def inspection(model: Model, sizes: Mapping[str, int]) -> dict[str, Any]:
    """What a model consists of, as JSON data: terms by operator with their work, inputs, outputs, and what is opaque."""
    rows: dict[str, dict[str, float]] = {}
    opaque: Counter[tuple[str, str]] = Counter()
    for node in model.nodes():
        if node.op == "opaque":
            opaque[(str(node.attr("call")), model.opaque.get(node, ""))] += 1
        elif node.args and node.op != "item":
            row = rows.setdefault(node.op, {"count": 0, "flops": 0, "bytes": 0})
            flops, moved = _work(node, sizes)
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


def _work(node: Node, sizes: Mapping[str, int]) -> tuple[int, int]:
    try:
        counted = work(node, sizes)
    except (TasoMirageError, LookupError, TypeError, ValueError):
        return 0, 0
    return counted.flops, counted.bytes


def _bytes(node: Node) -> int:
    from taso_mirage.meanings.work import size

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
        console.print(f"  sizes used for the counts below: {shown(found['sizes'])}", highlight=False, markup=False)
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


def quantity(value: float, unit: str) -> str:
    """`12.3 MB`."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.0f} {unit}".strip()


def versions() -> dict[str, str]:
    """Those of the packages that a result depends on."""
    import ml_dtypes
    import numpy
    import onnx
    import onnx_ir

    from taso_mirage.optimize import session

    return {
        "numpy": numpy.__version__,
        "onnx": onnx.__version__,
        "onnx-ir": onnx_ir.__version__,
        "onnxruntime": session.version(),
        "ml_dtypes": ml_dtypes.__version__,
    }


def diagnosis() -> dict[str, Any]:
    """Versions, providers that really start, and the cost cache."""
    import platform

    from taso_mirage.ops import data_folder, load_specs
    from taso_mirage.optimize import session
    from taso_mirage.optimize.cache import cache_path
    from taso_mirage.text import laws

    working = session.working_providers()
    path = cache_path()
    return {
        "taso-mirage": __version__,
        "python": platform.python_version(),
        "versions": versions(),
        "device": session.device(),
        "providers": {p: p in working for p in session.providers()},
        "operators": len(load_specs()),
        "laws": len(laws()),
        "substitutions": len(library.load()),
        "op_specs": str(data_folder("op_specs")),
        "cache": {"path": str(path), "bytes": path.stat().st_size if path.exists() else 0, "entries": _entries(path)},
    }


def _entries(path: Path) -> int:
    import sqlite3

    if not path.exists():
        return 0
    try:
        database = sqlite3.connect(path)
        count: int = database.execute("SELECT COUNT(*) FROM cost").fetchone()[0]
        database.close()
    except sqlite3.Error:
        return 0
    return count


def show_diagnosis(found: Mapping[str, Any]) -> None:
    """`doctor` as text."""
    console = Console()
    lines = [f"taso-mirage {found['taso-mirage']}, Python {found['python']}, {found['device']}"]
    lines += [f"  {name} {version}" for name, version in found["versions"].items()]
    lines += ["execution providers:"]
    lines += [f"  {p}: {'works' if ok else 'does not start on this machine'}" for p, ok in found["providers"].items()]
    lines += [f"{found['operators']} operators and {found['laws']} laws from {found['op_specs']}"]
    lines += [f"{found['substitutions']} generated substitutions"]
    cache = found["cache"]
    lines += [f"cost cache: {cache['path']}, {cache['entries']} measurements, {cache['bytes']} bytes"]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
