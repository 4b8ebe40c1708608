"""Compare the file of trtexec's --exportOutput with the expected outputs:

python check_samples.py FILE [SAMPLES]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


def main(exported: Path, samples: Path) -> int:
    """0 if every output is within its tolerance."""
    found = {each["name"]: np.asarray(each["values"], np.float64) for each in json.loads(exported.read_text())}
    wrong = 0
    for name, expected in json.loads((samples / "samples.json").read_text())["outputs"].items():
        if name not in found:
            print(f"{name}: is not in {exported}, which has {', '.join(found)}")
            wrong += 1
            continue
        wanted = np.load(samples / expected["file"], allow_pickle=False).astype(np.float64)
        given, tolerance = found[name].reshape(-1), expected["tolerance"]
        error = np.abs(given - wanted.reshape(-1)).max() if given.size == wanted.size else np.inf
        passed = bool(error <= tolerance)
        print(f"{name}: error {error:.3g}, {'within' if passed else 'above'} {tolerance:.3g}")
        wrong += not passed
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else Path(__file__).parent / "samples"))
