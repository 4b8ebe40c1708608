"""The command line that the examples share: search, print the muGraphs with cost and evidence,
write the best one's program."""

from __future__ import annotations

import argparse
import inspect
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from taso_mirage.ir.terms import topological
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.graph import KernelGraph
from taso_mirage.rewriting.text import show_graph


def main(build: Callable[..., KernelGraph], arguments: Sequence[str] | None = None) -> list[FoundMuGraph]:
    """Run an example; the keyword arguments of its builder are options.

    The result is the list of muGraphs, the best first.
    """
    options = _parser(build).parse_args(arguments)
    sizes = {name: getattr(options, name) for name in inspect.signature(build).parameters}
    start = time.perf_counter()
    found = build(**sizes).superoptimize(best=options.best, budget=options.budget)
    print(f"{build.__name__} {sizes}: {len(found)} muGraphs in {time.perf_counter() - start:.1f} s")
    for place, each in enumerate(found):
        print(f"\n#{place + 1} {shown(each)}")
    if found:
        print(f"\n{show_graph(found[0].graph)}")
    if found and options.output is not None:
        path = options.output / f"{build.__name__}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        found[0].generate_triton_program(path)
        print(f"wrote {path}")
    return found


def shown(found: FoundMuGraph) -> str:
    """Cost, evidence and kernels of a muGraph."""
    evidence = found.evidence
    lines = [
        f"{found.seconds * 1e6:.1f} us predicted for {found.device}; {evidence.tests} tests in the field "
        f"(a wrong one passes them with probability {evidence.bound:.0e}), {len(evidence.measured)} in numbers"
    ]
    for node in topological(found.graph.outputs):
        if node.op == "kernel":
            inputs = [a.attr("name") if a.op in ("input", "weight") else "stored" for a in node.args]
            lines.append(f"   kernel({', '.join(inputs)}) grid {node.attr('grid')} loop {node.attr('loop')}")
    return "\n".join(lines)


def _parser(build: Callable[..., KernelGraph]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=build.__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, parameter in inspect.signature(build).parameters.items():
        parser.add_argument(f"--{name}", type=int, default=parameter.default, metavar="N", help="size")
    parser.add_argument("--best", type=int, default=4, help="how many muGraphs to find")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds that the search may take")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="where to write the best one's Triton program")
    return parser
