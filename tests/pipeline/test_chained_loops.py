"""A chain of loops: each gives the terms that its states do not change, or do not read, to the
graph around it, and the steps of the rewrite lead there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from bodies import parse

from taso_mirage.onnx_io.files import from_memory
from taso_mirage.pipeline.loops import rewrite_loops
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.search.steps import replay

CHAIN = """
    g (float[2] s0, float[t, 2] x, float[2] r0, float[2] q0) => (float[t, 2] c) {{
        s, a = Scan<num_scan_inputs = 1, body = b1 (float[2] s1, float[2] e1) => (float[2] s2, float[2] y1) {{
            t1 = Tanh(e1) \n s2 = {update} \n y1 = Neg(s2)
        }}>(s0, x)
        r, b = Scan<num_scan_inputs = 1, body = b2 (float[2] r1, float[2] e2) => (float[2] r2, float[2] y2) {{
            t2 = Sigmoid(e2) \n r2 = Mul(r1, t2) \n y2 = Neg(r2)
        }}>(r0, a)
        q, c = Scan<num_scan_inputs = 1, body = b3 (float[2] q1, float[2] e3) => (float[2] q2, float[2] y3) {{
            t3 = Sigmoid(e3) \n q2 = Mul(q1, t3) \n y3 = Neg(q2)
        }}>(q0, b)
    }}
"""


@pytest.mark.parametrize("update", ["Mul(s1, t1)", "Add(s1, t1)"])
def test_every_loop_of_a_chain_gets_lighter(update: str) -> None:
    """A sum leaves no loop."""
    model = from_memory(parse(CHAIN.format(update=update)))
    job: Any = SimpleNamespace(config=SimpleNamespace(measure=True, portable=False), remarks=[])
    problem: Any = SimpleNamespace(model=model, weights=dict(model.weights), proofs=Proofs(None))
    found, steps = rewrite_loops(job, problem, model)
    ops = [n.op for n in found.nodes() if n.op not in ("input", "item")]
    rest = ["neg", "sigmoid", "scan", "neg", "sigmoid", "scan", "neg"]
    first = ["tanh", "scan"] if update[0] == "M" else ["unsqueeze", "tanh", "concat", "cumsum", "slice"]
    assert [op for op in ops if op != "add"] == [*first, *rest]
    assert replay(model.graph.outputs, steps) == found.graph.outputs
    assert len(job.remarks) == 3
