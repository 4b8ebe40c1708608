"""Small models of public reports about graph optimizers, rebuilt from their descriptions, by the
project and number of the report. No code of a report is used; a model shows the kind of graph that
a report describes. The reports are in the modules `public_reports_*`, one for each family of
projects."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from public_text import Builder  # noqa: E402

FAMILIES: Mapping[str, Mapping[str, Builder]] = {
    path.stem.removeprefix("public_reports_"): importlib.import_module(path.stem).REPORTS
    for path in sorted(HERE.glob("public_reports_*.py"))
}
REPORTS: Mapping[str, Builder] = {name: build for family in FAMILIES.values() for name, build in family.items()}
