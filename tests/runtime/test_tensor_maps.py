"""Tensor maps of kernels with specialized warps: the host encodes the map for which the code was
compiled, it is encoded anew where a tensor has moved, and an impossible one is refused."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import mugraphs
import pytest
from cuda_driver import DRIVER, check, cubin, driver, encoded, launched

from taso_mirage.devices.cpu.compiler import compiler
from taso_mirage.emit import triton
from taso_mirage.emit.compile import CompiledKernel, TensorMap, compiled
from taso_mirage.emit.gpu.program import TritonProgram
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.mugraph import Batch
from taso_mirage.runtime.plan import KernelImage, PlannedNode, cuda_kernel, images, sealed
from taso_mirage.runtime.tensorrt.plugin_attributes import kernel as plugin_kernel
from taso_mirage.runtime.tensorrt.python_plugin import module

pytest.importorskip("triton", reason="the extra `triton` is not installed")
__all__ = ["driver"]
NUMBERS = {"float16": 6, "bfloat16": 9}
"""The driver's of dtypes (`CUtensorMapDataType`)."""
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
FORMS = pytest.mark.parametrize(
    ("normed", "tile", "dtype"),
    [(False, 64, "float16"), (False, 128, "float16"), (True, 64, "bfloat16"), (True, 128, "float16")],
)


@dataclass(frozen=True)
class Form:
    """A program, its kernels for sm_90, and the first one's TTGIR."""

    program: TritonProgram
    kernels: tuple[CompiledKernel, ...]
    ttgir: str

    @property
    def plan(self) -> PlannedNode:
        return cuda_kernel(self.program, images(self.kernels))

    @property
    def parameters(self) -> list[int]:
        """Bytes of each, as the PTX declares them."""
        head = self.kernels[0].ptx.partition(".entry")[2].partition(")")[0]
        sizes = {".b8": 128, ".u32": 4, ".u64": 8}
        return [sizes[re.search(r"\.b8|\.u32|\.u64", line)[0]] for line in head.split(",")]  # type: ignore[index]


@cache
def form(normed: bool, tile: int, dtype: str = "float16", loop: int = 4) -> Form:
    import triton as package

    original: Any = package.compile
    seen: list[str] = []

    def recorded(*args: Any, **options: Any) -> Any:
        made = original(*args, **options)
        seen.append(made.asm["ttgir"])
        return made

    graph, _ = mugraphs.attention_roles(2 * loop * tile, 2, loop, normed=normed, dtype=dtype)
    program = triton.program(graph, specialized=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(package, "compile", recorded)
        kernels = tuple(compiled(program, 90))
    return Form(program, kernels, seen[0])


def run(driver: Path, folder: Path, made: Form, **env: object) -> list[str]:
    """The calls that the stand-in for a driver gets: its kernels have the parameters of the PTX."""
    sizes = made.program.buffer(made.program.launches[0].buffers[0]).shape
    count = len(made.parameters)
    given = {
        "PARAMETERS": ",".join(map(str, made.parameters)),
        "ARGUMENTS": count,
        "kernel_0": count,
        "APART": 16,
        "SHARED": 232448,
    }
    first = [line for line in made.plan.plan.splitlines()[:-1] if not re.match("kernel .* o0|image 1", line)]
    return launched(driver, folder, replace(made.plan, plan=sealed(first)), sizes=sizes, **(given | env))


# ---------------------------------------------------------------- as the code wants them


@FORMS
def test_what_is_encoded_is_what_the_code_was_compiled_for(
    driver: Path, tmp_path: Path, normed: bool, tile: int, dtype: str
) -> None:
    """Dims, strides and types of the tensors; boxes and swizzles as shared memory has them in the
    compiler's own form; and as many bytes as the barriers wait for."""
    made = form(normed, tile, dtype)
    lines = [line.split() for line in run(driver, tmp_path, made) if line.startswith("encode")]
    layouts = dict(re.findall(r"(#shared\d*) = #ttg\.nvmma_shared<\{swizzlingByteWidth = (\d+)", made.ttgir))
    declared = re.findall(
        r"%(\w+): !tt\.tensordesc<tensor<(\d+)x(\d+)x(\w+), (#shared\d*)>>", made.ttgir.partition("{noinline")[0]
    )
    asked = re.findall(r"barrier_expect %\w+, (\d+),", made.ttgir)
    boxes: list[int] = []
    assert [name for name, *_ in declared] == ["queries", "keys", "values"]
    for line, (name, rows, columns, short, layout) in zip(lines, declared, strict=True):
        said = dict(zip(line[1::2], line[2::2], strict=False))
        buffer = made.program.buffer(name[0].upper())
        count, inner = int(buffer.elements) // int(buffer.shape[-1]), int(buffer.shape[-1])
        assert said["dims"] == f"{inner},{count}"
        assert said["strides"] == str(inner * 2)
        assert (int(said["type"]), short) == (NUMBERS[dtype], {"float16": "f16", "bfloat16": "bf16"}[dtype])
        assert int(said["swizzle"]) == SWIZZLES[int(layouts[layout])] == 3
        assert (said["steps"], said["interleave"], said["promotion"], said["fill"]) == ("1,1", "0", "2", "0")
        width, height = map(int, said["box"].split(","))
        assert width * 2 <= int(layouts[layout])
        assert (int(rows) % height, int(columns) % width) == (0, 0)
        assert str(int(rows) * int(columns) * 2) in asked
        boxes += [(int(rows) // height) * (int(columns) // width)] * (1 if name == "queries" else 4)
    text = made.kernels[0].ptx
    asking = [
        _found(rf"and\.pred\s+{guard}, (%p\d+),", text) for guard in re.findall(r"@(%p\d+) cp\.async\.bulk", text)
    ]
    threads = [int(_found(rf"setp\.lt\.u32\s+{guard}, %r\d+, (\d+);", text)) for guard in asking]
    assert sorted(n // 32 for n in threads) == sorted(boxes)  # each warp asks for one


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, pattern
    return found[1]


@FORMS
def test_parameters_have_the_order_of_the_code(
    driver: Path, tmp_path: Path, normed: bool, tile: int, dtype: str
) -> None:
    """Triton's: a map, its dims in 32 bits, its strides in 64; then addresses; then two nulls. The
    launch has its shared memory, and waits itself for the kernel before it."""
    made = form(normed, tile, dtype)
    assert made.parameters == [128, 4, 4, 8, 8] * 3 + [8] * 5
    found = run(driver, tmp_path, made)
    first, launch = made.kernels[0], next(line for line in found if line.startswith("launch"))
    head = f"launch kernel_0 2 2 2 threads 384 shared {first.shared} stream 0x55 overlap 0:"
    shapes = [m.shape for m in first.maps]
    maps = " ".join(f"map {i} n={rows} n={columns} {columns:x} 1" for i, (rows, columns) in enumerate(shapes))
    assert launch == f"{head} {maps} 300 310 320 0 0"
    assert f"set 8 {first.shared}" in found
    assert first.hidden == 2


def test_a_kernel_with_maps_may_start_while_the_one_before_ends(driver: Path, tmp_path: Path) -> None:
    made = form(False, 64)
    later = replace(made, kernels=tuple(replace(each, overlap=True) for each in made.kernels))
    assert any(" overlap 1: map 0 " in line for line in run(driver, tmp_path, later))


def test_maps_clusters_and_early_starts_go_together(driver: Path, tmp_path: Path) -> None:
    made = replace(image(BOXED), overlap=True, shared=60_000)
    lines = [
        "taso_mirage 1 cuda",
        "input float16 8 64",
        "output float16 8",
        "kernel 4 1 1 i0 o0",
        "cluster 2",
        made.line,
    ]
    kernel = PlannedNode("cuda", "kernel", (), (), sealed(lines), "", (made.content,))
    env = {"PARAMETERS": "128,4,4,8,8,8", "ARGUMENTS": 6, "kernel_0": 6}
    found = launched(driver, tmp_path, kernel, sizes=(8, 64), **env)
    assert found[1:3] == ["set 8 60000", "set 9 100"]
    assert found[4:6] == [
        "attribute 4 of 2 1 1",
        "launch kernel_0 4 1 1 threads 128 shared 60000 stream 0x55 overlap 1: map 0 n=8 n=64 40 1 200",
    ]


def test_a_driver_that_counts_other_parameters_is_refused(driver: Path, tmp_path: Path) -> None:
    made = form(False, 64)
    problem = "takes more or other arguments than the 20 arguments of the plan"
    assert problem in run(driver, tmp_path, made, PARAMETERS="128,4,8,8,8" + ",8" * 15)[-1]


# ---------------------------------------------------------------- when they are made


@pytest.mark.parametrize(("launches", "times"), [("a", 1), ("aaa", 1), ("ab", 2), ("abab", 2), ("abcaa", 3)])
def test_a_map_is_made_once_for_an_address(driver: Path, tmp_path: Path, launches: str, times: int) -> None:
    found = run(driver, tmp_path, form(False, 64), LAUNCHES=launches)
    assert len([line for line in found if line.startswith("encode")]) == 3 * times
    first = {letter: 3 * i for i, letter in enumerate(dict.fromkeys(launches))}
    maps = [re.findall(r"map (\d+)", line) for line in found if line.startswith("launch")]
    assert maps == [[str(first[letter] + i) for i in range(3)] for letter in launches]
    places = re.findall(r"at 0x(\w+)", "\n".join(found))
    bases = [0x1000 * (ord(letter) - ord("a")) + 0x100 for letter in dict.fromkeys(launches)]
    assert [int(place, 16) for place in places] == [base + 16 * i for base in bases for i in range(3)]


def test_maps_of_many_addresses_are_not_all_kept(driver: Path, tmp_path: Path) -> None:
    """Three of each of 90 are more than are kept: the first are made again, and are right."""
    letters = "".join(chr(ord("!") + i) for i in range(90)) + "!"
    found = run(driver, tmp_path, form(False, 64), LAUNCHES=letters)
    assert len([line for line in found if line.startswith("encode")]) == 3 * 91


def test_what_the_driver_refuses_is_said(driver: Path, tmp_path: Path) -> None:
    made = form(False, 64)
    assert run(driver, tmp_path, made, APART=8)[-1] == (
        "problem argument 1 of kernel_0, float16 128 x 512 at 0x108, has no tensor map: CUDA error 1, illegal address"
    )
    assert "argument 0 of kernel_0" in run(driver, tmp_path, made, ENCODE_FAILS=1)[-1]


def test_an_old_driver_is_said_when_the_kernel_is_loaded(driver: Path, tmp_path: Path) -> None:
    """Before anything runs, so that the session can be opened without the library."""
    other = tmp_path / "old"
    other.mkdir()
    (other / "driver.cpp").write_text("#define WITHOUT_MAPS\n" + DRIVER)
    (other / "harness").symlink_to(driver / "harness")
    command = [*compiler(), "-std=c++17", "-shared", "-fPIC", "-o", str(other / "libcuda.so.1")]
    subprocess.run([*command, str(other / "driver.cpp")], check=True)
    found = run(other, tmp_path, form(False, 64))
    assert (
        found[-2:]
        == ["problem kernel_0 takes tensor maps, which this driver does not make; update the driver", "unload"][::-1]
    )


# ---------------------------------------------------------------- plans


def image(*maps: TensorMap, capability: int = 90) -> KernelImage:
    return KernelImage(0, capability, cubin(body=b"kernel_0"), "kernel_0", 4, 0, 0, False, maps=maps)


def planned(*maps: TensorMap, dims: str = "8 64", arguments: str = "i0 o0") -> PlannedNode:
    """A kernel of one input in half precision, which it copies in boxes."""
    made = image(*maps)
    lines = ["taso_mirage 1 cuda", f"input float16 {dims}", "output float16 8", f"kernel 1 1 1 {arguments}", made.line]
    return PlannedNode("cuda", "kernel", (), (), sealed(lines), "", (made.content,))


BOXED = TensorMap(0, (8, 64), (64, 1), (4, 64), 128)


def test_a_plan_says_every_map() -> None:
    kernel = form(True, 64, "bfloat16").plan
    assert [line for line in kernel.plan.splitlines() if line.startswith("map")] == [
        "map 0 512,64 64,1 128,64 128 zero",
        "map 1 1024,64 64,1 64,64 128 zero",
        "map 2 1024,64 64,1 64,64 128 zero",
    ]
    assert check(kernel.plan, encoded(kernel)) == ""
    assert check(planned(BOXED).plan, encoded(planned(BOXED))) == ""


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (replace(BOXED, box=(4, 512)), "a dim of a box is 512, more than 256"),
        (replace(BOXED, box=(0, 64)), "the box '0,64'; as many of each, up to 5"),
        (replace(BOXED, box=(64,)), "the strides '64,1' and the box '64'; as many of each, up to 5"),
        (replace(BOXED, box=(4, 4)), "boxes of 8 bytes along the innermost dim; a multiple of 16"),
        (replace(BOXED, swizzle=64), "boxes of 128 bytes along the innermost dim; a multiple of 16 up to the 64"),
        (replace(BOXED, swizzle=48), "a tensor map swizzles 48 bytes; 0, 32, 64 or 128"),
        (replace(BOXED, strides=(64, 2)), "has the stride 2 of elements of 2 bytes; the innermost one is 1"),
        (replace(BOXED, strides=(4, 1)), "the stride 4 of elements of 2 bytes; the others are multiples of 16 bytes"),
        (replace(BOXED, shape=(9, 64)), "reaches element 575 of a tensor of 512"),
        (replace(BOXED, shape=(0, 64)), "has the dim 0; 1 to 2147483647"),
        (replace(BOXED, shape=(8, 2**40)), "has the dim 1099511627776; 1 to 2147483647"),
        (replace(BOXED, argument=1, shape=(8, 64)), "reaches element 511 of a tensor of 8"),
        (replace(BOXED, argument=2), "a tensor map of argument 2 of 2; it must be a tensor"),
        (replace(BOXED, shape=(1,) * 6, strides=(1,) * 6, box=(1,) * 6), "up to 5"),
    ],
)
def test_maps_that_cannot_be_are_refused(wrong: TensorMap, said: str) -> None:
    kernel = planned(wrong)
    assert said in check(kernel.plan, encoded(kernel))


def test_lines_of_maps_that_cannot_be_are_refused() -> None:
    good = planned(BOXED).plan.splitlines()[:-1]
    line = good[-1]
    for lines, said in (
        ([*good, line], "a tensor map of argument 0 stands behind that of argument 0"),
        ([*good[:-2], line, good[-2]], "a tensor map has no image before it"),
        ([*good[:-1], line.replace("zero", "ones")], "'ones' is nothing that a tensor map reads outside"),
        ([*good[:-1], line.replace(" zero", "")], "'map' has 5 fields, not 6"),
        ([*good[:-1], line.replace("8,64", "n0,64")], "but no input gives n0"),
        ([*good[:-1], line.replace("8,64", "8,,64")], "has no number or name"),
        ([*good[:-2], good[-2].replace("image 0 90", "image 0 80"), line], "the GPU at least sm_90"),
    ):
        assert said in check(sealed(lines), encoded(planned(BOXED)))
    size = planned(BOXED, replace(BOXED, argument=1), dims="8 n0", arguments="i0 n0 o0")
    assert "a tensor map of argument 1 of 3; it must be a tensor" in check(size.plan, encoded(size))


@pytest.mark.parametrize(("rows", "blocks"), [(8, True), (5, True), (0, False)])
def test_sizes_of_a_run_are_sizes_of_its_maps(driver: Path, tmp_path: Path, rows: int, blocks: bool) -> None:
    """A map of three dims, whose outermost a run counts; elements outside of it are NaN."""
    made = image(TensorMap(0, ("n0*2", 4, 16), (64, 16, 1), (2, 4, 16), 32, nan=True))  # type: ignore[arg-type]
    lines = ["taso_mirage 1 cuda", "input float16 n0 2 64", "output float16 n0", "kernel n0 1 1 i0 o0 n0", made.line]
    kernel = PlannedNode("cuda", "kernel", (), (), sealed(lines), "", (made.content,))
    env = {"PARAMETERS": "128,4,4,4,8,8,8,8,4", "ARGUMENTS": 9, "kernel_0": 9}
    found = launched(driver, tmp_path, kernel, sizes=(rows, 2, 64), **env)
    encode = f"encode type 6 at 0x100 dims 16,4,{2 * rows} strides 32,128 box 16,4,2 steps 1,1,1 interleave 0 swizzle 1 promotion 2 fill 1"
    start = f"launch kernel_0 {rows} 1 1 threads 128 shared 0 stream 0x55 overlap 0:"
    launch = f"{start} map 0 n={2 * rows} n=4 n=16 40 10 1 200 n={rows}"
    assert found == ["load kernel_0", *([encode, launch] if blocks else []), f"output {rows}", "unload"]


def test_a_map_that_a_run_makes_too_large_is_refused(driver: Path, tmp_path: Path) -> None:
    made = image(TensorMap(0, ("n0+1", 64), (64, 1), (4, 64), 128))  # type: ignore[arg-type]
    lines = ["taso_mirage 1 cuda", "input float16 n0 64", "output float16 n0", "kernel 1 1 1 i0 o0", made.line]
    kernel = PlannedNode("cuda", "kernel", (), (), sealed(lines), "", (made.content,))
    env = {"PARAMETERS": "128,4,4,8,8,8", "ARGUMENTS": 6, "kernel_0": 6}
    found = launched(driver, tmp_path, kernel, sizes=(8, 64), **env)
    assert "problem the tensor map of argument 0 reaches element 575 of a tensor of 512" in found


# ---------------------------------------------------------------- one plan for all GPUs


def test_other_gpus_run_the_same_plan_without_maps(driver: Path, tmp_path: Path) -> None:
    """Images of one kernel differ in their arguments."""
    made = form(False, 64)
    plain = triton.program(mugraphs.attention_roles(512, 2, 4)[0])
    assert [(x.grid, x.buffers) for x in plain.launches] == [(x.grid, x.buffers) for x in made.program.launches]
    node = cuda_kernel(made.program, [*images(compiled(plain, 80)), *images(made.kernels)])
    assert check(node.plan, encoded(node)) == ""
    env = {"kernel_0": 8, "kernel_1": 6, "ARGUMENTS": 6, "APART": 16}
    found = launched(driver, tmp_path, node, 80, (2, 256, 64), **env)
    assert not any(line.startswith("encode") for line in found)
    assert any(line.endswith(": 100 110 120 300 310 320") for line in found)


def test_a_program_of_samples_or_of_free_sizes_has_no_maps() -> None:
    graph, _ = mugraphs.attention_roles(512, 2, 4, heads=1)
    assert len(triton.program_forms(graph, True)) == 2
    with pytest.raises(Unsupported, match="samples that a run counts"):
        triton.program(graph, None, Batch(1, (True, True, True)), specialized=True)
    free, _ = mugraphs.attention_roles(512, 2, 4, heads=symbol("n0"))
    assert [x.grid for x in triton.program(free).launches] == [(symbol("n0"), 2, 2), (symbol("n0"), 2)]
    with pytest.raises(Unsupported, match="a kernel without a loop of known sizes"):
        triton.program(free, specialized=True)
    assert len(triton.program_forms(free, True)) == 1


def test_the_plugin_in_python_leaves_maps_to_the_library() -> None:
    """TensorRT's own launches make none; the library has the same launcher as the runtime."""
    made = form(False, 64)
    node = cuda_kernel(made.program, images(made.kernels))
    kernel = plugin_kernel("node", node.attributes, [(2, 256, 64), (2, 64, 512), (2, 512, 64)])
    assert [[bool(x.maps) for x in each.images] for each in kernel.launches] == [[True], [False]]
    one = replace(
        kernel,
        launches=(replace(kernel.launches[0], images=(replace(kernel.launches[0].images[0], ptx=True, shared=0),)),),
    )
    assert module({"plugin": one})[1] == {"plugin": "it takes tensor maps, which TensorRT does not make"}
