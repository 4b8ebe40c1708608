"""Cost: seconds of a term on the target, measured once per signature and kept on disk, or estimated by a roofline."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from taso_mirage import __version__
from taso_mirage.dims import fixed
from taso_mirage.errors import RuntimeUnavailable, TasoMirageError
from taso_mirage.expressions import is_weight
from taso_mirage.ir import ABSENT, Graph, Node, Tensor, variable, weight
from taso_mirage.meanings.work import sized
from taso_mirage.model import Array, random_array
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.ops import get
from taso_mirage.optimize.passes import Context, Signature, signature
from taso_mirage.optimize.session import Session, device, version

CHAIN = 20
FREE = frozenset({"input", "weight", "constant", "extents", "item", "absent", "opaque"})


class TermCost(Protocol):
    """Seconds of one term, given its sizes."""

    def seconds(self, node: Node) -> float: ...


@dataclass
class Cost:
    """Seconds of a graph: the sum over its terms; what hangs on weights only is computed once, ahead, and costs nothing."""

    term: TermCost

    def __call__(self, nodes: Iterable[Node]) -> float:
        return sum(self.of(n) for n in nodes)

    def of(self, node: Node) -> float:
        """Seconds of one term."""
        return 0.0 if node.op in FREE or is_weight(node) else self.term.seconds(node)


class Roofline:
    """An analytic cost, for machines and operators that cannot be measured."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def seconds(self, node: Node) -> float:
        return self.context.estimate(node)


class Measured:
    """The cost of a term measured on ONNX Runtime's CPU provider; the roofline where that is impossible."""

    def __init__(self, context: Context, cache: CostCache, target: str) -> None:
        self.context, self.cache, self.target = context, cache, target
        self.fallback = Roofline(context)
        self.measured = 0
        self._overhead: float | None = None
        self._known: dict[Signature, float] = {}

    def seconds(self, node: Node) -> float:
        key = signature(node)
        if key not in self._known:
            self._known[key] = self._lookup(node)
        return self._known[key]

    def _lookup(self, node: Node) -> float:
        signature = self._signature(node)
        found = self.cache.get(self.target, signature)
        if found is None:
            try:
                found = self._measure(node)
                self.measured += 1
            except (RuntimeUnavailable, TasoMirageError, LookupError, TypeError, ValueError):
                return self.fallback.seconds(node)
            self.cache.put(self.target, signature, found)
        return found

    def _signature(self, node: Node) -> str:
        sizes = self.context.sizes
        operands = [
            "-" if a is ABSENT else ("const " if is_weight(a) else "") + str(sized(a.type, sizes)) for a in node.args
        ]
        opsets = {d: v for d, v in self.context.opsets.items() if d == get(node.op).domain}
        return json.dumps([node.op, operands, [[k, str(v)] for k, v in node.attrs], opsets])

    def _measure(self, node: Node) -> float:
        """Seconds that the term adds to a model: a run of it alone, less what a run costs without any operator."""
        if self._overhead is None:
            self._overhead = self._call_overhead()
        return max(self._time(node) - self._overhead, 2e-7)

    def _call_overhead(self) -> float:
        """A run of one tiny operator, less what each further one adds (that part belongs to the operator)."""
        x = variable("x", Tensor("float32", (1,)))
        one = chain = get("tanh").term(x)
        for _ in range(CHAIN):
            chain = get("tanh").term(chain)
        alone = self._run_alone((one,), [x], {})
        return alone - max(self._run_alone((chain,), [x], {}) - alone, 0.0) / CHAIN

    def _time(self, node: Node) -> float:
        return self._run_alone(*alone(node, self.context.sizes))

    def _run_alone(self, outputs: tuple[Node, ...], inputs: list[Node], weights: dict[str, Array]) -> float:
        session = _session(outputs, inputs, weights, self.context.opsets)
        rng = np.random.default_rng(1)
        return _median(session, {n.attr("name"): random_array(n, rng, {}) for n in inputs})


def alone(node: Node, sizes: Mapping[str, int]) -> tuple[tuple[Node, ...], list[Node], dict[str, Array]]:
    """A term over fresh leaves at fixed sizes: its outputs, its inputs, and random values where operands are weights."""
    rng = np.random.default_rng(0)
    inputs: list[Node] = []
    weights: dict[str, Array] = {}
    operands: list[Node] = []
    for i, arg in enumerate(node.args):
        if arg is ABSENT or arg.op in ("constant", "extents"):
            operands.append(arg)
            continue
        leaf = (weight if is_weight(arg) else variable)(f"a{i}", sized(arg.type, sizes))
        if is_weight(arg):
            weights[f"a{i}"] = Array(random_array(leaf, rng, {}))
        else:
            inputs.append(leaf)
        operands.append(leaf)
    term = get(node.op).term(*operands, **{k: fixed(v, sizes) for k, v in node.attrs})
    several = isinstance(term.type, tuple)
    count = len(term.type) if isinstance(term.type, tuple) else 1
    outputs = tuple(get("item").term(term, index=i) for i in range(count)) if several else (term,)
    return outputs, inputs, weights


def _session(
    outputs: tuple[Node, ...], inputs: list[Node], weights: dict[str, Array], opsets: Mapping[str, int]
) -> Session:
    return Session(serialize(standalone(Graph(tuple(inputs), outputs), {"": 17, **opsets}, weights)))


class Available:
    """Whether ONNX Runtime implements an operator for its operands: what the original uses it does, others are loaded once."""

    def __init__(self, original: Iterable[Node], opsets: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        self.opsets, self.sizes = opsets, sizes
        self.known = {self._key(n): True for n in original if n.args and n.op not in FREE}

    @staticmethod
    def _key(node: Node) -> tuple[Any, ...]:
        return node.op, tuple(a.type.dtype if isinstance(a.type, Tensor) else None for a in node.args)

    def __call__(self, node: Node) -> bool:
        key = self._key(node)
        if key not in self.known:
            try:
                _session(*alone(node, self.sizes), self.opsets)
                self.known[key] = True
            except (TasoMirageError, LookupError, TypeError, ValueError):
                self.known[key] = False
        return self.known[key]


def _median(session: Any, feed: Mapping[str, Any], budget: float = 0.02) -> float:
    session.run(feed)
    times: list[float] = []
    end = time.perf_counter() + budget
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 200):
        times.append(session.seconds(feed))
    return float(np.median(times))


class CostCache:
    """Measured seconds by (target, signature) in SQLite; a cache that cannot be opened is kept in memory."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._memory: dict[tuple[str, str], float] = {}
        self._database = self._open(path)

    @staticmethod
    def _open(path: Path | None) -> sqlite3.Connection | None:
        if path is None:
            return None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(path, timeout=5)
            database.execute(
                "CREATE TABLE IF NOT EXISTS cost (target TEXT, signature TEXT, seconds REAL, PRIMARY KEY (target, signature))"
            )
            return database
        except (OSError, sqlite3.Error):
            return None

    def get(self, target: str, signature: str) -> float | None:
        key = (target, signature)
        if key not in self._memory and self._database is not None:
            try:
                row = self._database.execute("SELECT seconds FROM cost WHERE target=? AND signature=?", key).fetchone()
            except sqlite3.Error:
                row = None
            if row is not None and isinstance(row[0], float) and row[0] >= 0:
                self._memory[key] = row[0]
        return self._memory.get(key)

    def put(self, target: str, signature: str, seconds: float) -> None:
        self._memory[(target, signature)] = seconds
        if self._database is not None:
            try:
                with self._database:
                    self._database.execute("INSERT OR REPLACE INTO cost VALUES (?, ?, ?)", (target, signature, seconds))
            except sqlite3.Error:
                self._database = None

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def cache_path() -> Path:
    """Where measured costs are kept; TASO_MIRAGE_CACHE overrides the user's cache folder."""
    import os

    import platformdirs

    folder = os.environ.get("TASO_MIRAGE_CACHE") or platformdirs.user_cache_dir("taso-mirage")
    return Path(folder) / "costs.sqlite"


def target_key() -> str:
    """The device and versions that a measurement holds for."""
    return f"cpu | {device()} | onnxruntime {version()} | taso-mirage {__version__}"
