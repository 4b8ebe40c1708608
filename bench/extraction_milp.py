"""Extraction from an e-graph as an integer program (Tensat, MLSys'21, section 4.3), solved by
HiGHS; `extraction.py` compares ours with it.

A binary column says that a class takes an option. A class that is needed takes one; where classes
may need each other, depths keep cycles out, and so does a loop formula, as logic programs call it:
of classes that need each other, one takes an option that needs none of them. Without these formulas
the relaxation pays nothing for a cycle, and its bound says little. The roots are not required but
earn a prize, the largest cost of a graph: so the solver starts from a solution, the empty one, and
costlier graphs are cut. The next cheapest graphs are found by leaving out those that are known.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from taso_mirage.search.bounds import ClassOptions, Option, tree_costs, undominated
from taso_mirage.search.extract import ChosenOptions, Extraction, _cheapest_trees, _Kept, _restricted

SCALE = 1e4
"""The scale of the prize, so that the solver's absolute tolerances are small beside it."""
LEAST = 1e-5
"""The least saving of a graph that counts, in that scale."""
OPTIMAL = 0


def extract(
    options: ClassOptions,
    roots: Sequence[int],
    known: Sequence[ChosenOptions] = (),
    keep: int = 1,
    slack: float = 1.0,
    seconds: float = math.inf,
) -> Extraction:
    """Solve as `taso_mirage.search.extract.extract`, within some seconds; the steps are the integer
    programs solved."""
    end = time.monotonic() + seconds
    prices = tree_costs(options)
    if any(root not in prices for root in roots):
        return Extraction((), True, 0, math.inf)
    kept = _Kept(keep, slack)
    for choice in (*known, _cheapest_trees(options, prices)):
        kept.offer(_restricted(options, roots, choice), options)
    program = _Program(options, roots, prices)
    for choice in list(kept.choices):
        program.leave_out(choice)
    best = kept.result()[0][0]
    status, found, bound = program.solve(best, end - time.monotonic())
    exact, solved = status == OPTIMAL, 1
    while True:
        if found:
            choice = _restricted(options, roots, found)
            kept.offer(choice, options)
            program.leave_out(tuple(choice.items()))
        left = end - time.monotonic()
        if status != OPTIMAL or left <= 0 or keep == 1 or (solved > 1 and not found):
            break
        solved += 1
        status, found, _ = program.solve(kept.threshold(), left)
    graphs = kept.result()
    return Extraction(graphs, exact, solved, graphs[0][0] if exact else min(bound, graphs[0][0]))


class _Program:
    """Columns and rows; a row is its coefficients by column, and the least and greatest sum."""

    def __init__(self, options: ClassOptions, roots: Sequence[int], prices: Mapping[int, float]) -> None:
        self.options = _reached(options, roots, prices)
        self.column = {key: j for j, key in enumerate((c, i) for c, ways in self.options.items() for i in ways)}
        self.cost = [options[c][i].cost for c, i in self.column]
        self.most = [1.0] * len(self.column)
        self.prize = self._new(1.0)
        self.rows: list[tuple[dict[int, float], float, float]] = []
        for each in self.options:
            self._row(self._taken(each), [], 0.0, 1.0)
        for root in dict.fromkeys(roots):
            self._row(self._taken(root), [self.prize], 0.0)
        needing = {c: self._needing(c) for c in self.options}
        for below in needing.values():
            for needed, ways in below.items():
                self._row(self._taken(needed), ways, 0.0)
        for cycle in self._components(needing):
            self._acyclic(cycle, needing)

    def solve(self, prize: float, seconds: float) -> tuple[int, ChosenOptions, float]:
        """How it ended, the cheapest graph that costs less than the prize, empty if none was found,
        and the lower bound of the costs."""
        if prize <= 0:
            return OPTIMAL, {}, 0.0
        entries = [(i, j, v) for i, (row, _, _) in enumerate(self.rows) for j, v in row.items()]
        at_row, at_column, values = zip(*entries, strict=True)
        matrix = csr_array((values, (at_row, at_column)), shape=(len(self.rows), len(self.most)))
        costs = np.zeros(len(self.most))
        costs[: len(self.cost)] = self.cost
        costs[self.prize] = -prize
        whole = np.arange(len(self.most)) <= self.prize
        sums = LinearConstraint(matrix, [low for _, low, _ in self.rows], [high for _, _, high in self.rows])
        limits = {"mip_rel_gap": 0.0, "time_limit": min(max(seconds, 0.0), 1e6)}
        scaled = costs * (SCALE / prize)
        done = milp(scaled, integrality=whole, bounds=Bounds(0, self.most), constraints=sums, options=limits)
        below = max(0.0, prize * (1 + done.mip_dual_bound / SCALE)) if done.mip_dual_bound is not None else 0.0
        if done.x is None or done.fun > -LEAST:
            return done.status, {}, below
        return done.status, {c: i for (c, i), j in self.column.items() if done.x[j] > 0.5}, below

    def leave_out(self, choice: Iterable[tuple[int, int]]) -> None:
        """Find this graph no more."""
        columns = [self.column.get(key) for key in choice]
        if None not in columns:
            self._row([], columns, 1.0 - len(columns))

    def _row(self, plus: Iterable[int], minus: Iterable[Any], low: float, high: float = math.inf) -> None:
        row = dict.fromkeys(plus, 1.0)
        for each in minus:
            row[each] = row.get(each, 0.0) - 1.0
        self.rows.append((row, low, high))

    def _taken(self, of: int) -> list[int]:
        return [self.column[of, i] for i in self.options[of]]

    def _needing(self, of: int) -> dict[int, list[int]]:
        """For each class that a class may need, the columns of the options that do."""
        found: dict[int, list[int]] = {}
        for i, option in self.options[of].items():
            for needed in option.needs:
                found.setdefault(needed, []).append(self.column[of, i])
        return found

    def _components(self, needing: Mapping[int, Mapping[int, object]]) -> list[list[int]]:
        """The sets of classes that may need each other."""
        place = {c: i for i, c in enumerate(needing)}
        edges = [(place[c], place[n]) for c, below in needing.items() for n in below]
        if not edges:
            return []
        matrix = csr_array((np.ones(len(edges)), tuple(zip(*edges, strict=True))), shape=(len(place),) * 2)
        _, labels = connected_components(matrix, connection="strong")
        found: dict[int, list[int]] = {}
        for each, label in zip(place, labels, strict=True):
            found.setdefault(label, []).append(each)
        return [classes for classes in found.values() if len(classes) > 1]

    def _acyclic(self, classes: list[int], needing: Mapping[int, Mapping[int, list[int]]]) -> None:
        """Depths, and loop formulas for all of the classes and for each two that need each
        other."""
        depth = {c: self._new(len(classes) - 1.0) for c in classes}
        self._loop(classes)
        for each in classes:
            for needed, ways in needing[each].items():
                if needed in depth:
                    row = {depth[needed]: 1.0, depth[each]: -1.0, **dict.fromkeys(ways, -float(len(classes)))}
                    self.rows.append((row, 1.0 - len(classes), math.inf))
                    if each < needed and each in needing[needed]:
                        self._loop([each, needed])

    def _loop(self, classes: list[int]) -> None:
        """None of the classes is taken unless one of them takes an option that needs none of
        them."""
        inside = set(classes)
        ways = [self.column[c, i] for c in classes for i, o in self.options[c].items() if inside.isdisjoint(o.needs)]
        outside = self._new(float(len(ways)))
        self._row(ways, [outside], 0.0)
        for each in classes:
            self._row([outside], self._taken(each), 0.0)

    def _new(self, most: float) -> int:
        self.most.append(most)
        return len(self.most) - 1


def _reached(options: ClassOptions, roots: Sequence[int], prices: Mapping[int, float]) -> dict[int, dict[int, Option]]:
    """The classes and options that the roots may need, without options that another one of the
    class replaces."""
    found: dict[int, dict[int, Option]] = {}
    waiting = list(roots)
    while waiting:
        each = waiting.pop()
        if each not in found:
            sound = [(i, o) for i, o in enumerate(options[each]) if all(n in prices and n != each for n in o.needs)]
            found[each] = undominated(sound)
            waiting += [n for option in found[each].values() for n in option.needs]
    return found
