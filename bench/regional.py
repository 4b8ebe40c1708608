"""Wrong rewrites deep in large models, found without a float64 evaluation of the whole: the mutants
of `deep_mutants.py` and `deep_convolutions.py` (in `tests/harness`) at three depths of models of
real size, and the cost of the check.

    python bench/regional.py [NAME ...] [-o FILE]

A row is a model: how many of the mutants the check of regions found, and how many the comparison of
the whole model found, as it runs at the end; which were found by neither; whether the right
rewrites passed; and CPU seconds of the check of a right one, beside those of one float64 evaluation
of the whole model. Writes bench/results/regional-cpu2.json after each row.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "tests" / "harness")]

from deep_convolutions import Convolutional, ImageSizes, image_mutants  # noqa: E402
from deep_mutants import Change, Sizes, Transformer, mutants, planted, right_ones  # noqa: E402
from rows import Rows  # noqa: E402

from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.machine import cores  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.check import CheckCase, compare  # noqa: E402
from taso_mirage.measure.compared import ClaimedModel  # noqa: E402
from taso_mirage.measure.reference import FloatReference  # noqa: E402
from taso_mirage.measure.regional import RegionalCheck  # noqa: E402
from taso_mirage.measure.session import open_in_child  # noqa: E402
from taso_mirage.measure.target import CPU  # noqa: E402
from taso_mirage.measure.whole import cases_by_runs  # noqa: E402

MODELS = {
    "12 layers of 256": Sizes(batch=2, tokens=64, heads=4, inner=64, layers=12),
    "24 layers of 512": Sizes(batch=2, tokens=128, heads=8, inner=64, layers=24),
    "12 layers of 768": Sizes(batch=1, tokens=128, heads=12, inner=64, layers=12),
    "24 layers of 1024": Sizes(batch=2, tokens=257, heads=16, inner=64, layers=24),
    "12 layers of 256, half": Sizes(batch=2, tokens=64, heads=4, inner=64, layers=12, dtype="float16"),
}
"""0.04 to 1.2 GB in single precision."""
IMAGES = {"16 blocks of 256 channels": ImageSizes(batch=2, channels=256, edge=28, layers=16)}


class Found:
    """One model, its cases, and the results of each of its comparisons."""

    def __init__(self, made: Transformer | Convolutional, cases: int) -> None:
        self.made = made
        session = open_in_child(self.made.model, CPU)
        drawn = cases_by_runs(self.made.model, session, self.made.model.sizes)
        self.cases: list[CheckCase] = list(drawn)[:cases]
        self.regions = RegionalCheck(self.made.model, self.cases)

    def regional(self, change: Change, layer: int) -> bool:
        found = planted(self.made, change, layer)
        differences = self.regions.differences(ClaimedModel(found.model, CPU, found.claims, {}))
        return not all(each.passed for each in differences)

    def whole(self, change: Change, layer: int) -> bool:
        model = planted(self.made, change, layer).model
        return not all(each.passed for each in compare(model, open_in_child(model, CPU), self.cases))


def spent() -> float:
    """CPU seconds of this process and of the runtime's, which is its child."""
    total = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            total += (int(fields[11]) + int(fields[12])) / 100
    return total


def row(name: str, whole: bool) -> dict[str, Any]:
    """One model, all mutants at three depths in turn."""
    images = name in IMAGES  # which have a flag, of both values
    found = Found(Convolutional(IMAGES[name]), 5) if images else Found(Transformer(MODELS[name]), 1)
    layers = [1, found.made.sizes.layers // 2, found.made.sizes.layers - 1]
    wrong: list[tuple[str, Change]] = list((image_mutants() if images else mutants()).items())
    places = {kind: (change, layers[i % 3]) for i, (kind, change) in enumerate(wrong)}
    began = time.perf_counter()
    by_regions = {kind for kind, place in places.items() if found.regional(*place)}
    seconds = time.perf_counter() - began
    by_whole = {kind for kind, place in places.items() if found.whole(*place)} if whole else set()
    right: dict[str, Change] = {} if images else right_ones()
    refused = [k for k, c in right.items() if found.regional(c, layers[1]) or found.whole(c, layers[1])]
    fresh, change = RegionalCheck(found.made.model, found.cases), next(iter((right or dict(wrong)).values()))
    made, before = planted(found.made, change, layers[1]), spent()
    fresh.differences(ClaimedModel(made.model, CPU, made.claims, {}))
    checked = spent()
    FloatReference(found.made.model)(found.cases[0].inputs)
    return {
        "case": name,
        "mutants": len(wrong),
        "regions": len(by_regions),
        "whole": len(by_whole) if whole else None,
        "missed": sorted(set(places) - by_regions - by_whole),
        "missed by regions": sorted(set(places) - by_regions),
        "right": len(right),
        "refused": refused,
        "alone": list(found.regions.alone),
        "seconds": round(seconds, 1),
        "cpu": {"regions": round(checked - before, 2), "float64": round(spent() - checked, 2)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*MODELS, *IMAGES], help=f"of {', '.join((*MODELS, *IMAGES))}")
    parser.add_argument("--whole", action="store_true", help="each mutant in the whole model, too")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    path = options.output or ROOT / "bench" / "results" / f"regional-cpu{cores()}.json"
    versions = {"taso-mirage": __version__, "onnxruntime": runtime.child_version()}
    head = {"bench": "regional", "device": runtime.device(), "versions": versions, "whole": options.whole}
    rows = Rows(path, head)
    for name in options.names:
        made = row(name, options.whole)
        print({key: value for key, value in made.items() if key != "missed by regions"}, flush=True)
        rows.keep(made)


if __name__ == "__main__":
    main()
