"""The README's tables are those of the committed results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_readme_tables_are_generated_from_the_results() -> None:
    done = subprocess.run([sys.executable, ROOT / "bench" / "tables.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, "run `python bench/tables.py`"
