"""Mutants of a model's costly programs, with corrections, as equations for its search (PET,
OSDI'21, sections 4 to 6).

The costliest programs come first, within a share of the budget; results for a program are kept on
disk by its structure.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.rewriting.text import show_graph
from taso_mirage.search.cost import Cost, Weighted
from taso_mirage.search.partial.source import Mutation, Tried, counted, mutation, tried
from taso_mirage.search.partial.whole import tests_in_words, verified_program
from taso_mirage.search.search import Budget
from taso_mirage.system.files import write_file
from taso_mirage.system.toml import read_json
from taso_mirage.verdicts import Failure
from taso_mirage.version import __version__

SHARE = 0.25
"""The part of the budget that mutants may take."""
LEAST = 0.01
"""The smallest share of the model's cost, over all places of a program, with which the program is
tried."""
EACH = 0.2
"""Seconds of the measurement in turn of a program and a mutant with a lower predicted cost."""


@dataclass(frozen=True, slots=True)
class Mutations:
    """The mutations that make a model faster (`found`), and counts of the work: costly programs
    (`known`: with results on disk, `late`: left out for lack of time), their mutants, the mutants
    without corrections, and the seconds."""

    found: tuple[Mutation, ...] = ()
    programs: int = 0
    known: int = 0
    late: int = 0
    mutants: int = 0
    refused: int = 0
    seconds: float = 0.0

    @property
    def by_name(self) -> Mapping[str, Mutation]:
        """By the names of their equations."""
        return {m.equation.name: m for m in self.found}


NO_MUTATIONS = Mutations()


class MutationStore:
    """Results of earlier trials of mutants, one file for each program. `device` names the device of
    the measurements.

    Without a folder nothing is stored.
    """

    def __init__(self, folder: Path | None, device: str) -> None:
        self.folder, self.device = folder, device

    def read(self, program: Graph) -> Tried | None:
        """The stored results of a program; None if there are none or the file cannot be read, so
        the program is tried again."""
        if self.folder is None:
            return None
        try:
            value = read_json(self._path(program, self.folder))
            found = tuple(_read(program, each) for each in value["mutations"])
            return Tried(found, int(value["mutants"]), int(value["refused"]))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, TasoMirageError):
            return None

    def write(self, program: Graph, made: Tried) -> None:
        """Store the results. If the folder cannot be written to, only the next run takes longer."""
        if self.folder is None:
            return
        mutations = [_written(m) for m in made.mutations]
        value = {"mutations": mutations, "mutants": made.mutants, "refused": made.refused}
        try:
            write_file(self._path(program, self.folder), json.dumps(value, indent=1) + "\n")
        except TasoMirageError:
            self.folder = None

    def _path(self, program: Graph, folder: Path) -> Path:
        said = "\0".join([show_graph(program), self.device, __version__])
        return folder / f"{hashlib.blake2b(said.encode(), digest_size=16).hexdigest()}.json"


def _written(each: Mutation) -> dict[str, Any]:
    return {
        "name": each.equation.name,
        "corrected": to_json(each.corrected),
        "families": list(each.families),
        "right": each.right,
        "region": each.region,
        "seconds": list(each.seconds),
    }


def _read(program: Graph, value: Any) -> Mutation:
    """Read a mutation from a file, which may be from anybody, so the mutation is verified again.

    Raises ValueError where it is wrong.
    """
    corrected = from_json(value["corrected"])
    if [o.type for o in corrected.outputs] != [o.type for o in program.outputs]:
        raise ValueError("another result")
    evidence = verified_program(program, corrected)
    if isinstance(evidence, Failure):
        raise ValueError(evidence.reason)
    before, after = map(float, value["seconds"])
    families, right = tuple(map(str, value["families"])), float(value["right"])
    drawn, said = str(value["region"]), tests_in_words(evidence)
    made = mutation(program, corrected, families, said, right, drawn, (before, after))
    if made.equation.name != value["name"]:  # it has a digest of both programs
        raise ValueError("another program")
    return made


def mutations(
    outputs: Sequence[Node],
    cost: Cost,
    term: Weighted,
    budget: Budget,
    store: MutationStore,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Mutations:
    """Try the mutants of the costly programs below `outputs` until the budget is spent, the
    costliest first."""

    def contest(program: Graph, corrected: Graph) -> tuple[float, float]:
        times = term.in_turn((program.outputs, corrected.outputs), EACH)
        return (0.0, math.inf) if times is None else (times[0], times[1])

    least = LEAST * cost(outputs)
    costs = {p: n * cost(p.outputs) for p, n in counted(outputs).items()}
    costly = sorted((p for p, seconds in costs.items() if seconds >= least), key=lambda p: -costs[p])
    done: list[Tried] = []
    known = 0
    for i, program in enumerate(costly):
        progress(i, len(costly))
        there = store.read(program)
        made = there or tried(
            program,
            lambda g: cost(g.outputs),
            contest if term.measured else None,
            late=lambda: budget.left() <= 0,
        )
        if made is not None:
            done.append(made)
            known += there is not None
            if there is None:
                store.write(program, made)
    return Mutations(
        found=tuple(m for t in done for m in t.mutations),
        programs=len(costly),
        known=known,
        late=len(costly) - len(done),
        mutants=sum(t.mutants for t in done),
        refused=sum(t.refused for t in done),
        seconds=time.monotonic() - budget.start,
    )
