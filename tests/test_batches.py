"""Regions with free leading dims: which they are, and that the kernels of one sample compute all of them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import mugraphs
import numpy as np
import pytest

from taso_mirage.codegen import triton
from taso_mirage.dims import Dim, symbol
from taso_mirage.errors import IllTyped
from taso_mirage.ir import Graph, Node, Tensor, variable
from taso_mirage.kernels.batches import batch_of, independent, kinds, resized
from taso_mirage.kernels.checkpoint import to_json
from taso_mirage.kernels.regions import Spot
from taso_mirage.model import Model
from taso_mirage.mugraph import Batch
from taso_mirage.onnx_io.build import standalone
from taso_mirage.ops import term
from taso_mirage.runtime.embed import Region
from taso_mirage.runtime.plan import Kernel

N, S = symbol("n"), symbol("s")


def x(name: str, *shape: Dim) -> Node:
    return variable(name, Tensor("float32", shape))


def spot(*outputs: Node) -> Spot:
    inputs = dict.fromkeys(n for o in outputs for n in Graph((), (o,)) if n.op == "input")
    return Spot(tuple(inputs), outputs, ())


def attention(*batch: Dim, mask: tuple[Dim, ...] = (6, 6)) -> Node:
    q, k, v = (x(name, *batch, 6, 8) for name in "qkv")
    turned = term("transpose", k, perm=(*range(len(batch)), len(batch) + 1, len(batch)))
    scores = term("add", term("matmul", q, turned), x("mask", *mask))
    return term("matmul", term("softmax", scores, axis=-1), v)


def model(*outputs: Node) -> Model:
    return standalone(Graph(spot(*outputs).inputs, outputs), {"": 20})


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        (term("add", x("a", N, 8), x("b", 8)), Batch(1, (True, False))),
        (term("add", x("a", N, S, 8), x("b", N, S, 8)), Batch(2, (True, True))),
        (term("add", x("a", 1, S, 8), x("b", 1, 8)), Batch(2, (True, False))),
        (term("add", x("a", N, S, 8), x("b", S, 8)), None),  # of other leading dims
        (term("add", x("a", 4, N), x("b", 4, 1)), None),  # the free dim is no leading one
        (term("add", x("a", N * 2, 8), x("b", 8)), None),  # no run has 2 n = 1
        (term("reduce_sum", x("a", N, 8), axes=(0,), keepdims=0), None),  # a result of all samples together
        (attention(N, 3), Batch(1, (True, True, False, True))),
        (attention(N, 3, mask=(N, 1, 1, 6)), Batch(1, (True, True, True, True))),
    ],
)
def test_the_free_dims_have_to_lead(output: Node, wanted: Batch | None) -> None:
    assert batch_of(spot(output)) == wanted


@pytest.mark.parametrize(
    ("output", "right"),
    [
        (term("softmax", x("a", N, 8), axis=1), True),
        (attention(N, 3), True),
        (term("softmax", x("a", N, 8), axis=0), False),
        (term("sub", x("a", N, 8), term("reduce_mean", x("a", N, 8), axes=(0,), keepdims=1)), False),
        (term("reshape", term("transpose", x("a", N, 4, 2), perm=(1, 0, 2)), shape=(N, 8)), False),
    ],
)
def test_samples_that_mix_are_found(output: Node, right: bool) -> None:
    given, free = spot(output), {"n"}
    batch = batch_of(given)
    assert batch is not None
    assert independent(given, resized(given, {"n": 1}), batch, free) is right


def test_a_region_with_other_free_dims_is_left_out_and_said() -> None:
    scores = term("softmax", x("scores", N, 4, S, S), axis=-1)
    norm = term("rms_norm", x("h", N, S, 16), x("g", 16), axis=-1, epsilon=1e-5)
    found, out = kinds(model(scores, norm), {"n": 2, "s": 3}, 4, True)
    assert out == {"n", "s"}
    assert [kind.batch for kind in found] == [Batch(2, (True, False))]
    (kind,) = found
    assert [o.shape for o in (*kind.goal.outputs, *kind.whole.outputs)] == [(1, 1, 16), (2, 3, 16)]
    everywhere, none = kinds(model(scores, norm), {"n": 2, "s": 3}, 4, False)
    assert (len(everywhere), none) == (2, set())
    assert all(kind.batch is None and kind.goal is kind.whole for kind in everywhere)


def test_a_kernel_of_any_number_of_samples_takes_one_number_alone() -> None:
    n = symbol("n0")
    kernel = Kernel("cuda", "k", *[(Tensor("float32", (n, 8)),) * i for i in (2, 1)], "", "")
    a, b, c = x("a", N, 8), x("b", N, 8), x("c", S, 8)
    Region((a, b), (term("add", a, b),), kernel).check({})
    assert not Region((a, b), (term("add", a, b),), kernel).free
    with pytest.raises(IllTyped, match="input 1"):
        Region((a, c), (term("add", a, b),), kernel).check({})


# ---------------------------------------------------------------- programs


def sums() -> tuple[Graph, Graph]:
    """Sums of the columns of a sample, by two kernels with scratch memory between them, plus what all samples share."""
    a, b = x("a", 1, 12, 20), x("b", 20)
    first = mugraphs.kernel([(a, (1,), -1)], lambda t: term("reduce_sum", t, axes=(1,), keepdims=1), (3,), 1, (1,))
    second = mugraphs.kernel(
        [(first, (2,), -1), (b, (0,), -1)],
        lambda t, u: term("add", term("reduce_sum", t, axes=(1,), keepdims=0), u),
        (2,),
        1,
        (1,),
    )
    goal = term("add", term("reduce_sum", x("a", 5, 12, 20), axes=(1,), keepdims=0), b)
    return Graph((a, b), (second,)), Graph((x("a", 5, 12, 20), b), (goal,))


INTERPRETED = """
import json, sys
from pathlib import Path
import torch
from taso_mirage.codegen.compile import load
from taso_mirage.fuse.cuda import Right, _program
from taso_mirage.kernels.checkpoint import from_json

goal, record = json.loads(Path(sys.argv[1]).read_text())
goal, program = from_json(goal), _program(record)
inputs = [torch.randn([int(n) for n in x.shape]) for x in goal.inputs]
result = load(program.source, Path(sys.argv[1]).parent).launch(*inputs)
assert result.shape == goal.outputs[0].shape
print(Right(goal)(inputs, (result,)))
"""


def test_scratch_memory_is_each_samples_own(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    graph, goal = sums()
    batch = Batch(1, (True, False))
    program = triton.program(graph, None, batch)
    assert "sample * 240" in program.source
    assert [b.batched for b in program.buffers] == [True, False, True, True]
    schedules = [asdict(each.schedule) for each in program.launches]
    record = {"mugraph": to_json(graph), "schedules": schedules, "batch": asdict(batch)}
    (tmp_path / "given.json").write_text(json.dumps([to_json(goal), record]))
    command = [sys.executable, "-c", INTERPRETED, str(tmp_path / "given.json")]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["True"]), done.stderr


def test_a_plan_has_a_grid_for_every_sample() -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    from taso_mirage.codegen.compile import compiled
    from taso_mirage.runtime.plan import cuda_kernel, images

    program = triton.program(sums()[0], None, Batch(1, (True, False)))
    made = cuda_kernel(program, images(compiled(program, 90)))
    assert made.free
    assert [line for line in made.plan.splitlines() if not line.startswith(("image", "check"))] == [
        "taso_mirage 1 cuda",
        "input float32 n0 12 20",
        "input float32 20",
        "output float32 n0 20",
        "scratch float32 60*n0",
        "kernel n0*3 1 1 i0 s0",
        "kernel n0*2 1 1 s0 i1 o0",
    ]
    assert math.prod(b.elements for b in program.buffers if b.role == "scratch") == 60
    assert np.shape(made.images) == (2,)
