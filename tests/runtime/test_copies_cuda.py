"""Copies of an input to the same places of a result: they are left out where both are one memory,
and what reads the input is in order with what is written over it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from cuda_driver import check, cubin, driver, encoded, launched
from scattered_goals import scattered
from stored_goals import parted

from taso_mirage.emit import triton
from taso_mirage.emit.gpu.program import TritonBuffer, TritonProgram
from taso_mirage.ir.terms import Graph, Tensor, variable
from taso_mirage.operators.ops import term
from taso_mirage.runtime.plan import KernelImage, PlannedNode, cuda_kernel, sealed

__all__ = ["driver"]

GOALS = scattered() | parted()
"""MuGraphs whose results have parts that are inputs, at their own places or at others."""


def planned(program: TritonProgram) -> PlannedNode:
    """The program with stand-ins for its code."""
    names = [each.name for each in program.launches]
    images = [KernelImage(i, 90, cubin(body=x.encode()), x, 4, 1024, 0, False) for i, x in enumerate(names)]
    return cuda_kernel(program, images)


def launches(driver: Path, folder: Path, kernel: PlannedNode, **env: object) -> list[str]:
    """The kernels that the launcher starts, in order."""
    rows = [line.split() for line in kernel.plan.splitlines()]
    counts = [len(row) - 4 for row in rows if row[0] == "kernel"]
    sizes = [int(n) for n in next(row for row in rows if row[0] == "input")[2:]]
    given = {f"kernel_{i}": count for i, count in enumerate(counts)}
    found = launched(driver, folder, kernel, sizes=sizes, ARGUMENTS=min(counts), **given, **env)
    assert not [line for line in found if line.startswith("problem")]
    return [line.split()[1] for line in found if line.startswith("launch")]


def places(buffer: TritonBuffer) -> list[int]:
    """Where the elements of a buffer of fixed sizes are, in the order of its dims."""
    dims = [range(int(n)) for n in buffer.shape]
    strides = [int(n) for n in buffer.strides]
    return [int(buffer.start) + sum(i * n for i, n in zip(each, strides, strict=True)) for each in product(*dims)]


@pytest.mark.parametrize("name", GOALS)
def test_a_copy_has_its_elements_at_the_same_places(name: str) -> None:
    kernels = [x for x in GOALS[name] if x.op == "kernel"]
    blocks = [triton._function(x, f"kernel_{i}", triton.tensor_buffers(GOALS[name]), ()) for i, x in enumerate(kernels)]
    for block in blocks:
        read, written = block.term.reads[0], block.term.writes[0]
        body = block.body
        same = (
            body.outputs == body.inputs
            and isinstance(read, TritonBuffer)
            and (read.role, written.role) == ("input", "output")
            and not written.rows
            and read.shape == written.shape
            and places(read) == places(written)
        )
        assert block.launch(None).copies == same


def test_some_goals_have_such_copies_and_some_have_others() -> None:
    marks = [line.split()[0] for x in scattered().values() for line in planned(triton.program(x)).plan.splitlines()]
    assert marks.count("copies") == len(scattered())
    others = [
        x
        for x in parted().values()
        if any(n.op == "kernel" and n.attr("body").inputs == n.attr("body").outputs for n in x)
    ]
    plans = [planned(triton.program(x)).plan for x in others]
    assert any("\ncopies" not in plan for plan in plans)


@pytest.mark.parametrize("name", scattered())
def test_a_copy_to_the_same_memory_is_left_out(name: str, driver: Path, tmp_path: Path) -> None:
    kernel = planned(triton.program(scattered()[name]))
    every = [line.split()[0] for line in kernel.plan.splitlines()]
    copied = f"kernel_{every[: every.index('copies')].count('kernel') - 1}"
    whole = launches(driver, tmp_path, kernel)
    assert copied in whole
    # The harness gives each result the address of the input with its number.
    first = [line.split() for line in kernel.plan.splitlines() if line.startswith("kernel")][int(copied[-1])][4:]
    left = launches(driver, tmp_path, kernel, IN_PLACE=1)
    assert left == ([x for x in whole if x != copied] if first == ["i0", "o0"] else whole)


def test_who_reads_what_may_be_written_over_is_in_order(driver: Path, tmp_path: Path) -> None:
    """Another result reads the cache: beside a copy it runs before what is written over it."""
    cache, new = variable("cache", Tensor("float16", (4, 8))), variable("new", Tensor("float16", (4, 8)))

    def each(x: object, op: str | None) -> object:
        leaf = variable("t", Tensor("float16", (1, 8)))
        body = Graph((leaf,), (leaf if op is None else term(op, leaf),))
        return term("kernel", x, body=body, grid=(4,), loop=1, imap=((0,),), fmap=(-1,), omap=((0,),), cluster=1)

    graph = Graph((cache, new), (each(cache, "exp"), each(cache, None), each(new, "exp")))
    kernel = planned(triton.program(graph))
    streams = [
        line.split()[10]
        for line in launched(driver, tmp_path, kernel, sizes=(4, 8), ARGUMENTS=2, kernel_0=2, kernel_1=2, kernel_2=2)
        if line.startswith("launch")
    ]
    assert "\ncopies" in kernel.plan
    assert streams[0] == streams[1] != streams[2]
    apart = replace(kernel, plan=sealed([x for x in kernel.plan.splitlines()[:-1] if x != "copies"]))
    other = [
        line.split()[10]
        for line in launched(driver, tmp_path, apart, sizes=(4, 8), ARGUMENTS=2, kernel_0=2, kernel_1=2, kernel_2=2)
        if line.startswith("launch")
    ]
    assert len({*other}) == 3


@pytest.mark.parametrize(
    "lines", [["copies"], ["kernel 1 1 1 o0 i0", "copies"], ["kernel 1 1 1 i0 o0", "copies", "copies"]]
)
def test_a_copy_that_cannot_be_is_refused(lines: list[str]) -> None:
    image = KernelImage(0, 90, cubin(body=b"kernel_0"), "kernel_0", 4, 1024, 0, False)
    head = ["taso_mirage 1 cuda", "input float16 4", "output float16 4"]
    plan = sealed([*head, *lines, image.line])
    kernel = PlannedNode("cuda", "kernel", (), (), plan, "", (image.content,))
    assert "a copy has one kernel before it" in check(plan, encoded(kernel))
