"""Plans and the CUDA runner without a GPU: hostile plans and images give errors, never a crash; a
stand-in driver sees the launches."""

from __future__ import annotations

import random
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import mugraphs
import numpy as np
import pytest
from cuda_driver import CPP, check, cubin, driver, encoded, launched
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taso_mirage.emit import triton
from taso_mirage.emit.compile import compiled
from taso_mirage.emit.gpu.program import TritonProgram
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.mugraph import Batch, tile_count, tile_part
from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.operators.ops import term
from taso_mirage.runtime.plan import KernelImage, PlannedNode, ProgramRange, cuda_kernel, images, sealed

__all__ = ["driver"]

PTX = ".version 8.4\n.target sm_80\n"
SPLIT = triton.program(mugraphs.attention_split_safe()[0])


def split_images(program: TritonProgram = SPLIT) -> list[KernelImage]:
    """Stand-ins for Triton's compiled code: launches of both kinds, for two architectures and as
    PTX."""
    found = []
    for capability in (80, 90):
        for i, launch in enumerate(program.launches):
            later = capability == 90 and i == 1
            found.append(
                KernelImage(
                    i, capability, cubin(body=launch.name.encode()), launch.name, 4, 60_000 if later else 1024, 2, later
                )
            )
    return found + [image.with_ptx(PTX) for image in found[:2]]


def split_kernel() -> PlannedNode:
    return cuda_kernel(SPLIT, split_images())


# ---------------------------------------------------------------- plans


def test_a_plan_says_every_launch() -> None:
    kernel = split_kernel()
    assert check(kernel.plan, encoded(kernel)) == ""
    lines = kernel.plan.splitlines()
    assert [line.split()[0] for line in lines] == (
        ["taso_mirage"] + ["input"] * 3 + ["output"] + ["scratch"] * 3 + ["kernel"] * 2 + ["image"] * 6 + ["check"]
    )
    assert lines[8:10] == ["kernel 2 3 4 i0 i1 i2 s0 s1 s2", "kernel 2 3 1 s0 s1 s2 o0"]
    assert kernel.attributes.keys() == {"plan", *(f"image_{i}" for i in range(6))}


CHANGES = {
    "kernel 2 3 4": ("kernel 0 3 4", "dimension 0 of the grid is 0; 1 to 2147483647 blocks"),
    "kernel 2 3 4 i0": ("kernel 2 70000 4 i0", "dimension 1 of the grid is 70000; 1 to 65535 blocks"),
    "i0 i1 i2 s0": ("i0 i1 i9 s0", "a kernel takes number 9 of 3 inputs"),
    "i1 i2 s0 s1": ("i1 x2 s0 s1", "the argument 'x2' is no input, output, scratch memory or size"),
    " 4 60000 ": (" 4 60000000 ", "the shared memory is 60000000, more than 1048576"),
    " 4 1024 ": (" 64 1024 ", "the number of warps is 64, more than 32"),
    "1024 2 0": ("1024 99 0", "the number of hidden arguments is 99, more than 8"),
    "image 1 90": ("image 7 90", "an image is of kernel 7, but there are 2"),
    "image 1 90 cubin": ("image 1 90 exe", "'exe' is no kind of an image"),
    "scratch float32 2": ("scratch float32 9999999999999 9999999", "is larger than any memory"),
    "input float16": ("input float17", "'float17' is no dtype"),
    "output float16 2": ("output float16 batch", "but no input gives batch"),
    "taso_mirage 1 cuda": ("taso_mirage 9 cuda", "has format 9, this library reads 1; update taso-mirage"),
    "taso_mirage 1": ("taso_mirage 0", "reads 1; optimize the model again"),
    "input float16 2 6": ("input float16 2*3 6", ""),
    "input float16 2 6 5": ("input float16 a*b 6 5", "but no input gives a"),
    "output float16 2 6": ("output float16 2*( 6", "has no number or name at character 3"),
    "output float16 2 6 7": ("output float16 1/0 6 7", "divides 1 by 0, which is not exact"),
    "output float16 2 6 7\n": (f"output float16 {'(' * 40}2{')' * 40} 6 7\n", "is nested too deeply"),
    "output float16": (f"output float16 {'9999999999*' * 3}9", "overflows"),
    "\nscratch": ("\nkernal", "line 6 of the plan: a line of a plan for cuda cannot begin with 'kernal'"),
    "image 0 80 cubin kernel_0": ("image 0 80 cubin kernel/0", "'kernel/0' is no name of a kernel"),
}


@pytest.mark.parametrize("old", CHANGES)
def test_a_plan_that_cannot_be_is_refused_with_both_values(old: str) -> None:
    kernel, (new, message) = split_kernel(), CHANGES[old]
    text = "\n".join(kernel.plan.splitlines()[:-1]) + "\n"
    assert old in text
    said = check(sealed(text.replace(old, new, 1).splitlines()), encoded(kernel))
    assert message in said if message else said == ""


def test_damaged_images_are_refused() -> None:
    kernel = split_kernel()
    good = encoded(kernel)
    for damaged, message in (
        (good[0][:-40], "it is truncated or was changed"),
        (good[0][:-1] + b"\x00", "is not base64"),
        (good[1], "it was changed"),
    ):
        assert message in check(kernel.plan, [damaged, *good[1:]])
    assert "there are 5 images, the plan says 6" in check(kernel.plan, good[:-1])


BODY = cubin()
ELVES = {
    "no cubin": b"MZ" + BODY[2:],
    "another machine": BODY[:18] + b"\x3e" + BODY[19:],
    "short": BODY[:40],
    "a section behind the end": BODY[:-40] + struct.pack("<Q", 1 << 40) + BODY[-32:],
    "headers behind the end": BODY[:40] + struct.pack("<Q", (1 << 64) - 8) + BODY[48:],
    "many sections": BODY[:60] + b"\xff\xff" + BODY[62:],
    "headers that are too small": BODY[:58] + b"\x01\x00" + BODY[60:],
}


@pytest.mark.parametrize("name", ELVES)
def test_what_is_no_cubin_never_reaches_the_driver(name: str) -> None:
    image = replace(split_images()[0], content=ELVES[name])
    one = [image, *split_images()[1:]]
    assert "the image of kernel_0 for sm_80 is damaged" in check(
        cuda_kernel(SPLIT, one).plan, encoded(cuda_kernel(SPLIT, one))
    )


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=300))
def test_no_text_crashes_the_reader(text: bytes) -> None:
    assert check(text)


def mutants(count: int) -> list[bytes]:
    """Plans with fields taken away, doubled, exchanged and overwritten; most with a right
    checksum."""
    rng = random.Random(0)
    good = [line.split() for line in split_kernel().plan.splitlines()[:-1]]
    newer = next(i for i, line in enumerate(good) if line[:3] == ["image", "0", "90"])
    good.insert(newer + 1, "map 1 10,24 24,1 2,8 32 zero".split())
    assert check(sealed(map(" ".join, good)), encoded(split_kernel())) == ""
    odd = [
        "0",
        "-1",
        "",
        "18446744073709551616",
        "9" * 18,
        "a" * 300,
        "rows",
        "rows*rows",
        "((",
        "i999",
        "s0",
        "\x00",
        "é",
        "1/0",
        "ffffffff",
    ]
    found = []
    for _ in range(count):
        lines = [list(line) for line in good]
        for _ in range(rng.randint(1, 3)):
            line = rng.choice(lines)
            at = rng.randrange(len(line)) if line else 0
            kind = rng.randrange(5)
            if kind == 0 or not line:
                line.insert(at, rng.choice(odd))
            elif kind == 1:
                line[at] = rng.choice(odd)
            elif kind == 2:
                del line[at]
            elif kind == 3:
                lines.insert(rng.randrange(len(lines)), list(rng.choice(lines)))
            else:
                line[at] = rng.choice(rng.choice(good))
        text = sealed(" ".join(line) for line in lines).encode()
        found.append(text[: rng.randrange(len(text))] if rng.random() < 0.1 else text)
    return found


# ---------------------------------------------------------------- a stand-in for the driver


@pytest.mark.sampled(3)
def test_no_plan_and_no_image_makes_a_sanitizer_complain(driver: Path) -> None:
    rng = random.Random(1)
    hostile = mutants(3000)
    for _ in range(3000):
        content = bytearray(BODY)
        for _ in range(rng.randint(1, 4)):
            content[rng.randrange(len(content))] = rng.choice([0, 1, 255, rng.randrange(256)])
        hostile.append(bytes(content[: rng.randrange(len(content))] if rng.random() < 0.2 else content))
    done = subprocess.run(
        [driver / "harness"],
        input=b"".join(struct.pack("<Q", len(x)) + x for x in hostile),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    good, bad = map(int, done.stdout.split())
    assert good + bad == 6000
    assert min(good, bad) > 300


# ---------------------------------------------------------------- launches


def test_kernels_are_launched_in_order_on_the_stream_with_scratch_between(driver: Path, tmp_path: Path) -> None:
    found = launched(driver, tmp_path, split_kernel())
    assert found == [
        "load kernel_0",
        "load kernel_1",
        "set 8 60000",
        "set 9 100",
        "launch kernel_0 2 3 4 threads 128 shared 1024 stream 0x55 overlap 0: 100 101 102 300 301 302",
        "launch kernel_1 2 3 1 threads 128 shared 60000 stream 0x55 overlap 1: 300 301 302 200 0 0",
        "output 2",
        "output 6",
        "output 7",
        "unload",
        "unload",
    ]


def cluster_kernel(overlap: bool = True, splits: int = 4, capability: int = 90) -> PlannedNode:
    """Attention whose splits of the keys are a cluster."""
    graph, _ = mugraphs.attention_cluster(splits=splits, keys=6 * splits)
    image = KernelImage(0, capability, cubin(body=b"kernel_0"), "kernel_0", 4, 1024, 2, overlap)
    return cuda_kernel(triton.program(graph), [image])


@pytest.mark.parametrize("overlap", [False, True])
def test_clusters_are_an_attribute_of_the_launch(driver: Path, tmp_path: Path, overlap: bool) -> None:
    kernel = cluster_kernel(overlap)
    assert [x for x in kernel.plan.splitlines() if x.startswith(("kernel", "cluster"))] == [
        "kernel 8 3 1 i1 i0 i2 o0" if "i1 i0 i2" in kernel.plan else "kernel 8 3 1 i0 i1 i2 o0",
        "cluster 4",
    ]
    found = launched(driver, tmp_path, kernel, sizes=(2, 6, 5), ARGUMENTS=4, kernel_0=6)
    assert found[1:3] == ["set 8 1024", "attribute 4 of 4 1 1"]  # the driver's share of shared memory is enough
    assert found[3].startswith(f"launch kernel_0 8 3 1 threads 128 shared 1024 stream 0x55 overlap {int(overlap)}:")
    assert not any(x.startswith("set 14") for x in found)


def test_large_clusters_are_asked_for(driver: Path, tmp_path: Path) -> None:
    found = launched(driver, tmp_path, cluster_kernel(splits=16), ARGUMENTS=4, kernel_0=6)
    assert "set 14 1" in found
    assert "attribute 4 of 16 1 1" in found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("cluster 4", "cluster 1", "a cluster of 1 blocks"),
        ("cluster 4", "cluster 17", "the number of blocks of a cluster"),
        ("cluster 4", "cluster 3", "8 blocks along its first dimension, which clusters of 3 do not fill"),
        ("cluster 4", "cluster 4\ncluster 4", "one kernel before it has it"),
        ("image 0 90", "image 0 80", "which has clusters, is for sm_80"),
    ],
)
def test_clusters_that_cannot_be_are_refused(driver: Path, tmp_path: Path, old: str, new: str, said: str) -> None:
    kernel = cluster_kernel()
    lines = kernel.plan.replace(old, new, 1).splitlines()[:-1]
    (problem,) = launched(driver, tmp_path, replace(kernel, plan=sealed(lines)), ARGUMENTS=4, kernel_0=6)
    assert said in problem


def free_kernel() -> PlannedNode:
    """A program for up to 100 elements of the free dims, in tiles of 1 and 4, and one for more, in
    tiles of 1 and 16, whose first kernel gives the second one its operand."""
    n, s = symbol("n0"), symbol("n1")
    x = variable("x", Tensor("float16", (n, s, 8)))

    def each(y: Node, size: int) -> Node:
        part = tile_part(symbol("n1"), size)
        leaf = variable("t", Tensor("float16", (1, part, 8)))
        body = Graph((leaf,), (term("exp", leaf),))
        grid, cuts = (n, tile_count(s, part)), ((0, 1),)
        return term("kernel", y, body=body, grid=grid, loop=1, imap=cuts, fmap=(-1,), omap=cuts)

    few, many = Graph((x,), (each(x, 4),)), Graph((x,), (each(each(x, 16), 16),))
    codes = [
        [KernelImage(i, 90, cubin(body=f"kernel_{i}".encode()), f"kernel_{i}", 4, 1024, 0, False) for i in range(count)]
        for count in (1, 2)
    ]
    return cuda_kernel(triton.program(many), codes[1], [ProgramRange(triton.program(few), codes[0], 100)])


FEW = ["launch kernel_0 {} 1 1 threads 128 shared 1024 stream 0x55 overlap 0: 100 200 n={} n={}"]
MANY = [
    "launch kernel_0 {} 1 1 threads 128 shared 1024 stream 0x55 overlap 0: 100 300 n={} n={}",
    "launch kernel_1 {} 1 1 threads 128 shared 1024 stream 0x55 overlap 0: 300 200 n={} n={}",
]


@pytest.mark.parametrize(
    ("n", "s", "lines", "blocks"),
    [(1, 1, FEW, 1), (3, 5, FEW, 6), (4, 25, FEW, 28), (4, 26, MANY, 8), (2, 1000, MANY, 126), (0, 5, [], 0)],
)
def test_sizes_of_a_run_are_arguments_and_choose_the_program(
    driver: Path, tmp_path: Path, n: int, s: int, lines: list[str], blocks: int
) -> None:
    kernel = free_kernel()
    assert check(kernel.plan, encoded(kernel)) == ""
    assert [x for x in kernel.plan.splitlines() if x[:6] in ("input ", "scratc", "kernel", "range ")] == [
        "input float16 n0 n1 8",
        "scratch float32 n0 n1 8",
        "kernel ((n1+3)//(4))*n0 1 1 i0 o0 n0 n1",
        "range 100",
        "kernel ((n1+15)//(16))*n0 1 1 i0 s0 n0 n1",
        "kernel ((n1+15)//(16))*n0 1 1 s0 o0 n0 n1",
    ]
    given = {"kernel_0": 4, "kernel_1": 4, "ARGUMENTS": 4, "SIZES": 2}
    found = launched(driver, tmp_path, kernel, sizes=(n, s, 8), **given)
    assert [x for x in found if x.startswith("launch")] == [each.format(blocks, n, s) for each in lines]


def test_a_size_that_kernels_cannot_count_is_refused(driver: Path, tmp_path: Path) -> None:
    given = {"kernel_0": 4, "kernel_1": 4, "ARGUMENTS": 4, "SIZES": 2}
    found = launched(driver, tmp_path, free_kernel(), sizes=(1, 2**31 - 1, 8), **given)
    assert any("the size n1 is 2147483647, kernels take up to 2146435072" in line for line in found)
    wide = launched(driver, tmp_path, free_kernel(), sizes=(1, 1, 8), **{**given, "SIZES": 9})
    assert any("takes more or other arguments than the 4 arguments of the plan" in line for line in wide)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["range 5", "kernel 1 1 1 i0 o0"], "has no kernel, or is not above the one before"),
        (["kernel 1 1 1 i0 o0", "range 5"], "no kernel behind its last range"),
        (["kernel 1 1 1 i0 o0", "range 5", "kernel 1 1 1 i0 o0", "range 5", "kernel 1 1 1 i0 o0"], "not above the one"),
        (["kernel 1 1 1 i0 o0 n1"], "takes number 1 of 1 named sizes"),
        (["kernel n0///2 1 1 i0 o0"], "has no number or name"),
    ],
)
def test_ranges_and_sizes_that_cannot_be_are_refused(lines: list[str], said: str) -> None:
    plan = sealed(["taso_mirage 1 cuda", "input float16 n0", "output float16 n0", *lines])
    assert said in check(plan, [])


@pytest.mark.parametrize("samples", [5, 1, 0])
def test_every_sample_has_its_blocks(driver: Path, tmp_path: Path, samples: int) -> None:
    x = mugraphs.leaf("x", "float16", 1, 6, 4)
    node = mugraphs.kernel([(x, (1,), -1)], lambda t: term("exp", t), (3,), 1, (1,))
    program = triton.program(Graph((x,), (node,)), None, Batch(1, (True,)))
    kernel = cuda_kernel(program, [KernelImage(0, 90, cubin(body=b"kernel_0"), "kernel_0", 4, 1024, 0, False)])
    assert check(kernel.plan, encoded(kernel)) == ""
    found = launched(driver, tmp_path, kernel, sizes=(samples, 6, 4), kernel_0=2, ARGUMENTS=2)
    launch = f"launch kernel_0 {3 * samples} 1 1 threads 128 shared 1024 stream 0x55 overlap 0: 100 200"
    assert found == [
        "load kernel_0",
        *([launch] if samples else []),
        f"output {samples}",
        "output 6",
        "output 4",
        "unload",
    ]


def lanes_kernel() -> PlannedNode:
    """Two kernels with scratch memory between, and beside them two more of the same inputs."""
    first, second = SPLIT.launches
    names = {b.name: f"{b.name}_beside" for b in SPLIT.buffers if b.role != "input"}
    beside = [
        replace(each, name=f"kernel_{i + 2}", buffers=tuple(names.get(b, b) for b in each.buffers))
        for i, each in enumerate((first, second))
    ]
    program = replace(
        SPLIT,
        buffers=(*SPLIT.buffers, *(replace(b, name=names[b.name]) for b in SPLIT.buffers if b.name in names)),
        launches=(first, beside[0], second, beside[1]),
        results=(*SPLIT.results, *(names[r] for r in SPLIT.results)),
    )
    images = [
        KernelImage(i, 90, cubin(body=launch.name.encode()), launch.name, 4, 1024, 0, True)
        for i, launch in enumerate(program.launches)
    ]
    return cuda_kernel(program, images)


def test_kernels_that_share_no_memory_run_beside_each_other(driver: Path, tmp_path: Path) -> None:
    """The second lane waits for earlier work on the stream, and later work waits for both; its
    first kernel overlaps with nothing."""
    found = launched(driver, tmp_path, lanes_kernel(), kernel_0=6, kernel_1=4, kernel_2=6, kernel_3=4, ARGUMENTS=4)
    shown = [
        " ".join(line.split()[:2] + line.split()[9:13]) if line.startswith("launch") else line
        for line in found
        if not line.startswith(("load", "set", "output"))
    ]
    assert shown == [
        "record 0x71 on 0x55",
        "launch kernel_0 stream 0x55 overlap 1:",
        "launch kernel_1 stream 0x55 overlap 1:",
        "wait of 0x61 for 0x71",
        "launch kernel_2 stream 0x61 overlap 0:",
        "launch kernel_3 stream 0x61 overlap 1:",
        "record 0x72 on 0x61",
        "wait of 0x55 for 0x72",
        "end of stream 0x61",
        "end of event 0x72",
        "end of event 0x71",
        *["unload"] * 4,
    ]


@pytest.mark.parametrize(("other", "shown"), [(9, "0x9"), (0, "(nil)")])
def test_the_context_of_the_thread_is_given_back(driver: Path, tmp_path: Path, other: int, shown: str) -> None:
    """Kernels run, and are unloaded, in the context that they were loaded in."""
    found = launched(driver, tmp_path, split_kernel(), OTHER=other)
    seen = [
        x if x.startswith("context") else x.split()[0] for x in found if x.startswith(("context", "launch", "unload"))
    ]
    there, back = "context 0x7", f"context {shown}"
    assert seen == [back, there, "launch", "launch", back, there, "unload", "unload", back]
    assert launched(driver, tmp_path, split_kernel(), CONTEXT=0) == ["problem this thread has no CUDA context"]


@pytest.mark.parametrize(("capability", "loaded"), [(80, "kernel_0"), (86, "kernel_0"), (90, "kernel_0"), (100, "ptx")])
def test_the_image_of_the_device_is_chosen(driver: Path, tmp_path: Path, capability: int, loaded: str) -> None:
    found = launched(driver, tmp_path, split_kernel(), capability)
    assert found[0] == f"load {loaded}"
    assert ("set 8 60000" in found) == (capability == 90)


def test_what_the_device_cannot_do_is_said(driver: Path, tmp_path: Path) -> None:
    kernel = split_kernel()
    assert launched(driver, tmp_path, kernel, 75)[-1] == (
        "problem kernel 0 is compiled for sm_80, sm_90, PTX for sm_80, this GPU is sm_75; optimize the model for it"
    )
    assert "has 4 warps in the plan, its code takes 64 threads" in launched(driver, tmp_path, kernel, THREADS=64)[-1]
    assert "cannot be launched: CUDA error 700, illegal address" in launched(driver, tmp_path, kernel, FAILS=1)[-1]
    more = cuda_kernel(SPLIT, [replace(x, hidden=3) for x in split_images()])
    assert "takes 8 arguments, not the 9 arguments of the plan" in launched(driver, tmp_path, more)[-1]
    less = cuda_kernel(SPLIT, [replace(x, hidden=1) for x in split_images()])
    assert "takes more or other arguments than the 7 arguments of the plan" in launched(driver, tmp_path, less)[-1]
    large = cuda_kernel(SPLIT, [replace(x, shared=200_000) for x in split_images()])
    assert "needs 200000 bytes of shared memory, this GPU has 100000" in launched(driver, tmp_path, large)[-1]


def test_named_sizes_give_grids_and_outputs(driver: Path, tmp_path: Path) -> None:
    """A kernel whose blocks are rows runs for any number of rows."""
    code = cubin(body=b"kernel_0")
    image = KernelImage(0, 90, code, "kernel_0", 4, 0, 2, False)
    lines = ["taso_mirage 1 cuda", "input float16 rows 5", *["input float16 5"] * 4]
    lines += ["output float16 rows/2 (rows+1)*3-3", "kernel rows/2 1 1 i0 i1 i2 i3 i4 o0", image.line]
    kernel = replace(split_kernel(), plan=sealed(lines), images=(code,))
    assert launched(driver, tmp_path, kernel, sizes=(8, 5))[1:4] == [
        "launch kernel_0 4 1 1 threads 128 shared 0 stream 0x55 overlap 0: 100 101 102 103 104 200",
        "output 4",
        "output 24",
    ]
    assert (
        "the size 'rows/2' divides 7 by 2, which is not exact" in launched(driver, tmp_path, kernel, sizes=(7, 5))[-1]
    )
    assert launched(driver, tmp_path, kernel, sizes=(8, 6)) == [
        "problem dimension 1 of input 0 is 6, its kernel was made for 5"
    ]
    assert launched(driver, tmp_path, kernel, sizes=(8,)) == [
        "problem input 0 has rank 1, its kernel was made for rank 2"
    ]


# ---------------------------------------------------------------- the compiled files of Triton


def test_what_triton_compiles_makes_a_plan(driver: Path, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    program = triton.program(mugraphs.ntrans(8, 64, 4)[0])
    made = [*images(compiled(program, 80)), *images(compiled(program, 90)), *images(compiled(program, 100))]
    kernel = cuda_kernel(program, [*made, made[0].with_ptx(compiled(program, 80)[0].ptx)])
    assert check(kernel.plan, encoded(kernel)) == ""
    assert launched(driver, tmp_path, kernel, 121, (8, 64), kernel_0=6)[0] == "load ptx"
    found = launched(driver, tmp_path, kernel, 90, (8, 64), kernel_0=6)
    assert found[0] == "load cubin"
    assert found[1].startswith("launch kernel_0 4 1 1 ")
    assert found[1].endswith(": 100 101 102 200 0 0")


def test_a_result_that_no_kernel_writes_has_no_plan() -> None:
    graph = mugraphs.ntrans()[0]
    with pytest.raises(Unsupported, match="each must be written by a kernel, once"):
        cuda_kernel(triton.program(Graph(graph.inputs, (graph.outputs[0], graph.inputs[0]))), [])


def test_numbers_of_dtypes_are_those_of_onnx() -> None:
    import onnx

    known = {"bfloat16": onnx.TensorProto.BFLOAT16, "bool": onnx.TensorProto.BOOL}
    for dtype in "float32 uint8 int8 uint16 int16 int32 int64 bool float16 float64 uint32 uint64 bfloat16".split():
        number = known.get(dtype) or onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        assert f'{{"{dtype}", {number}, ' in (CPP / "plan.cpp").read_text()
