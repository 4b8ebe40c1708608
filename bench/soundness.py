"""The cost of proofs, and the rewrites that they prevent: the models of `bench/optimize.py`,
searched with proofs and without, in one run.

    python bench/soundness.py [NAME ...] [--budget 20] [--small]

Each model is searched with every rule that matches, with proofs of every application from nothing,
and once more with the verdicts of the run before; costs are a roofline, so that the searches do the
same work. Then the certificate is written and followed. A rewrite is lost where the predicted cost
with proofs is higher. Prints a table and writes bench/results/soundness-cpu2.json after each row.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from optimize import MODELS  # noqa: E402
from rows import Rows  # noqa: E402

import models  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.certificates.follow import follow  # noqa: E402
from taso_mirage.certificates.judge import CaseJudge  # noqa: E402
from taso_mirage.devices.machine import cores  # noqa: E402
from taso_mirage.ir.model import Model  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.cost_cache import proofs_path  # noqa: E402
from taso_mirage.onnx_io import from_ir, load, save  # noqa: E402
from taso_mirage.pipeline import optimize_model, problem  # noqa: E402
from taso_mirage.prove.rules.proofs import Proofs  # noqa: E402
from taso_mirage.report import certificate  # noqa: E402
from taso_mirage.report.result import Result  # noqa: E402
from taso_mirage.search.config import Config  # noqa: E402
from taso_mirage.search.rulesets import rules  # noqa: E402


class Trusting(Proofs):
    """Every application passes, as before there were proofs."""

    def __call__(self, application: object) -> bool:
        return True


def searched(model: Model, budget: float, cache: Path, proving: bool) -> tuple[Result, dict[str, Any]]:
    """One search on a roofline."""
    config = Config(budget=budget, measure=False, cache=cache)
    with patch.object(problem, "Proofs", Proofs if proving else Trusting):
        result = optimize_model(model, config)
    return result, {
        "search": round(result.searched, 2),
        "cost": result.cost_after,
        "terms": result.terms_after,
        "changes": sum(result.equations.values()),
        "states": result.statistics.states,
    }


def row(name: str, budget: float, small: bool) -> dict[str, Any]:
    """One model, all ways."""
    builder, options = MODELS[name]
    model = from_ir(ir.from_proto(models.build(builder, small=small, **options)))
    rules()
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "costs.sqlite"
        searched(model, budget, Path(folder) / "other" / "costs.sqlite", False)  # modules are loaded on first use
        _, trusting = searched(model, budget, cache, False)
        _, cold = searched(model, budget, cache, True)
        result, warm = searched(model, budget, cache, True)
        source, target = Path(folder) / "original.onnx", Path(folder) / "optimized.onnx"
        save(model, source, source=True)
        save(result.model, target)
        start = time.perf_counter()
        certificate.write_certificate(Path(folder) / "steps.json", result, Proofs(proofs_path(cache)))
        written = time.perf_counter()
        text = json.loads((Path(folder) / "steps.json").read_text())
        first, last = load(source), load(target)
        begun = time.perf_counter()
        found = follow(first, last, text, CaseJudge())
        checked = time.perf_counter()
    return {
        "case": name,
        "without": trusting,
        "cold": cold,
        "warm": warm,
        "written": round(written - start, 2),
        "followed": round(checked - begun, 2),
        "equalities": dict(found.equalities),
        "places": found.places,
    }


def show(r: dict[str, Any]) -> None:
    times = " ".join(
        f"{kind} {r[kind]['search']:6.2f} s, {r[kind]['changes']} changes;" for kind in ("without", "cold", "warm")
    )
    lost = r["cold"]["cost"] / r["without"]["cost"]
    print(
        f"{r['case']:14} {times} cost {lost:.4f}; certificate {r['written']:.2f} s, followed {r['followed']:.2f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of a search, at most")
    parser.add_argument("--small", action="store_true", help="the small forms of the models")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    path = options.output or ROOT / "bench" / "results" / f"soundness-cpu{cores()}.json"
    versions = {"taso-mirage": __version__, "onnxruntime": runtime.child_version()}
    head = {"bench": "soundness", "device": runtime.device(), "versions": versions, "unit": "s", "small": options.small}
    rows = Rows(path, head)
    for name in options.names:
        made = row(name, options.budget, options.small)
        show(made)
        rows.keep(made)


if __name__ == "__main__":
    main()
