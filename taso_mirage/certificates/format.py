"""The format of a certificate, which `report/certificate.py` writes and `follow.py` reads
(docs/certificates.md)."""

from __future__ import annotations

from taso_mirage.ir.terms import Graph
from taso_mirage.prove.rules.cases import Instance
from taso_mirage.rewriting.text import show_graph

CERTIFICATE_FORMAT = "taso_mirage.certificate/2"
CHECK = "float check"
"""The ground of an equality without a proof: the whole model was compared with the original's
float64 reference."""
PROOF = "symbolic"
"""The proof of a case, for every size of its letters."""


def texts(instance: Instance) -> tuple[str, str]:
    """The two sides as functions over common inputs."""
    leaves = instance.leaves
    return show_graph(Graph(leaves, instance.lhs), "lhs"), show_graph(Graph(leaves, instance.rhs), "rhs")
