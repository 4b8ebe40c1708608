"""The exported library: it builds without warnings, and has TensorRT's interface of a plugin.

The tools for that are not in any wheel:

TENSORRT_INCLUDE       folders with TensorRT's public headers, of one version each (8.6, 10 or 11),
with : between them TENSORRT_LEAN_RUNTIME  a folder where tensorrt-lean-cu13-bindings and -libs are
installed (pip install --no-deps --target) TENSORRT_RTX           the same of
tensorrt-rtx-cu13-bindings and -libs
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import mugraphs
import numpy as np
import pytest
from plugin_models import exported, optimized

from taso_mirage.emit import triton
from taso_mirage.emit.compile import compiled
from taso_mirage.onnx_io import save
from taso_mirage.onnx_io.build import standalone
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import cuda_kernel, images
from taso_mirage.runtime.tensorrt.plugin_attributes import PluginKernel
from taso_mirage.runtime.tensorrt.plugin_export import Exported, export

__all__ = ["exported", "optimized"]
TESTS = Path(__file__).parents[1] / "harness"
HEADERS = [Path(each) for each in os.environ.get("TENSORRT_INCLUDE", "").split(os.pathsep) if each]
CMAKE = shutil.which("cmake")
COMPILER = shutil.which("g++") or shutil.which("clang++")
LEAN = os.environ.get("TENSORRT_LEAN_RUNTIME")
RTX = os.environ.get("TENSORRT_RTX")


@dataclass(frozen=True, slots=True)
class Built:
    """A library, and the headers that it was made with."""

    library: Path
    include: Path

    def program(self, name: str, out: Path) -> Path:
        """A program of these tests, made with the same headers."""
        options = ["-std=c++17", f"-I{self.include}", f"-I{cuda()}", "-w", "-ldl", "-lpthread"]
        subprocess.run([str(COMPILER), str(TESTS / f"{name}.cpp"), *options, "-o", str(out / name)], check=True)
        return out / name


def version(include: Path) -> int:
    """The major version of the headers in a folder."""
    text = (include / "NvInferVersion.h").read_text()
    found = re.search(r"define (?:NV_TENSORRT_MAJOR|TRT_MAJOR_ENTERPRISE) (\d+)", text)
    assert found is not None
    return int(found[1])


def cuda() -> Path:
    """A folder with cuda_runtime_api.h: Triton's wheel has one."""
    spec = importlib.util.find_spec("triton")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "backends" / "nvidia" / "include"


@pytest.fixture(scope="session", params=HEADERS or [None], ids=lambda each: each.parent.name if each else "none")
def built(request: pytest.FixtureRequest, exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Made as the README says, which ends at any warning."""
    if request.param is None or CMAKE is None or COMPILER is None:
        pytest.skip("needs cmake, a C++ compiler, and TENSORRT_INCLUDE with the folders of TensorRT's public headers")
    return made(exported.folder, request.param, tmp_path_factory.mktemp("build"))


def made(folder: Path, include: Path, out: Path) -> Built:
    options = [f"-DTENSORRT_INCLUDE_DIR={include}", f"-DCUDA_INCLUDE_DIR={cuda()}", f"-DCMAKE_CXX_COMPILER={COMPILER}"]
    for command in (["-S", str(folder), "-B", str(out), *options], ["--build", str(out), "-j", "2"]):
        done = subprocess.run([str(CMAKE), *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return Built(out / "libtaso_mirage_plugin.so", include)


def test_library_links_neither_tensorrt_nor_cuda(built: Built) -> None:
    needed = subprocess.run(["readelf", "-d", str(built.library)], capture_output=True, text=True, check=True).stdout
    assert "NEEDED" in needed
    assert not re.search(r"NEEDED.*(nvinfer|cuda)", needed)


def test_plugin_does_what_the_interface_asks(exported: Exported, built: Built, tmp_path: Path) -> None:
    harness = built.program("test_plugin_harness", tmp_path)
    digests = [kernel.digest for kernel in exported.kernels.values()]
    done = subprocess.run([str(harness), str(built.library), *digests], capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("\nok ") > 20) == (0, True), done.stdout + done.stderr


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_the_stand_in_for_a_driver_compiles(tmp_path: Path) -> None:
    """Where there are no headers of TensorRT nothing else looks at it."""
    source, made = str(TESTS / "test_plugin_driver.cpp"), str(tmp_path / "libcuda.so.1")
    subprocess.run([str(COMPILER), "-std=c++17", "-shared", "-fPIC", source, "-o", made], check=True)


LAUNCHES = {
    0: ["launch kernel_0 {x} {y} 1 threads {threads} shared {shared} at 1+0 0+0 2+0 null null"],
    1: [
        "launch kernel_0 3 1 1 threads 32 shared 128 at 0+0 2+0 null null",
        "launch kernel_1 2 1 1 threads 32 shared 0 at 2+0 1+0 null null",
    ],
}
"""By the plugin's number: the calls of the first run to the driver.

Its tensors are allocations 0, 1..., then the workspace.
"""


@pytest.mark.parametrize("number", [0, 1])
def test_plugin_launches_its_kernels(exported: Exported, built: Built, tmp_path: Path, number: int) -> None:
    device, driver = built.program("test_plugin_device", tmp_path), tmp_path / "libcuda.so.1"
    source = str(TESTS / "test_plugin_driver.cpp")
    subprocess.run([str(COMPILER), "-std=c++17", "-shared", "-fPIC", source, "-o", str(driver)], check=True)
    kernel = list(exported.kernels.values())[number]
    given = tensors(kernel, tmp_path)
    count = len(kernel.launches[0].arguments) + kernel.launches[0].images[0].hidden
    env = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "FAKE_DRIVER_PARAMETERS": str(count)}
    command = [str(device), str(built.library), str(number), kernel.digest, "5", *given]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("launch ")]
    (x, y, _), image = kernel.launches[0].grid, kernel.launches[0].images[0]
    wanted = [line.format(x=x, y=y, threads=32 * image.warps, shared=image.shared) for line in LAUNCHES[number]]
    assert said[: len(wanted)] == wanted
    assert len(said) == len(wanted) * (1 + 1 + 2 * 5)  # once, captured, in two threads


def test_plugin_gives_its_kernels_tensor_maps(built: Built, tmp_path: Path) -> None:
    """Attention whose warps have roles: once for every context, as its tensors stay where they
    are."""
    graph, goal = mugraphs.attention_roles(heads=1)
    program = triton.program(graph, specialized=True)
    region = EmbeddedRegion(goal.inputs, goal.outputs, cuda_kernel(program, images(compiled(program, 90))))
    save(embed(standalone(goal, {"": 17}), [region]), tmp_path / "attention.onnx")
    exported = export(tmp_path / "attention.onnx", tmp_path / "plugin", {})
    library = made(exported.folder, built.include, tmp_path / "build").library
    (kernel,) = exported.kernels.values()
    device, driver = built.program("test_plugin_device", tmp_path), tmp_path / "libcuda.so.1"
    source = str(TESTS / "test_plugin_driver.cpp")
    subprocess.run([str(COMPILER), "-std=c++17", "-shared", "-fPIC", source, "-o", str(driver)], check=True)
    env = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "FAKE_DRIVER_PARAMETERS": "6"}
    command = [str(device), str(library), "0", kernel.digest, "5", *tensors(kernel, tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert [line for line in said if line.startswith("map")][:3] == [
        "map of 0+0 type 6 dims 64 256 stride 128 box 64 128 swizzle 3",
        "map of 1+0 type 6 dims 512 64 stride 1024 box 64 64 swizzle 3",
        "map of 2+0 type 6 dims 64 512 stride 128 box 64 64 swizzle 3",
    ]
    assert len([line for line in said if line.startswith("map")]) == 3 * 3
    launches = [line for line in said if line.startswith("launch kernel_0")]
    assert len(launches) == 1 + 1 + 2 * 5
    shared = kernel.launches[0].images[0].shared
    assert launches[0] == f"launch kernel_0 1 2 2 threads 384 shared {shared} at 0+0 {'unknown ' * 4}1+0"


def tensors(kernel: PluginKernel, folder: Path) -> list[str]:
    """A kernel's tensors as test_plugin_device.cpp takes them, with random inputs in files."""
    rng, made = np.random.default_rng(3), []
    for role, types in (("in", kernel.inputs), ("out", kernel.outputs)):
        for i, each in enumerate(types):
            file = folder / f"{role}{i}.bin"
            if role == "in":
                rng.normal(size=each.shape).astype(each.dtype).tofile(file)
            made.append(
                f"{role}:{'half' if each.dtype == 'float16' else 'float'}:{'x'.join(map(str, each.shape or ()))}:{file}"
            )
    return made


def gpu() -> bool:
    """Whether a driver is there, and finds a GPU."""
    try:
        driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except OSError:
        return False


@pytest.mark.skipif(not gpu(), reason="needs a GPU")
@pytest.mark.parametrize("number", [0, 1])
def test_plugin_computes_the_same_on_a_gpu(exported: Exported, built: Built, tmp_path: Path, number: int) -> None:
    device = built.program("test_plugin_device", tmp_path)
    kernel = list(exported.kernels.values())[number]
    command = [str(device), str(built.library), str(number), kernel.digest, "10000", *tensors(kernel, tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *rest = (
        np.fromfile(tmp_path / f"in{i}.bin", t.dtype).reshape(t.shape or ()).astype(np.float64)
        for i, t in enumerate(kernel.inputs)
    )
    norm = first / np.sqrt((first * first).mean(1, keepdims=True))
    exact = norm @ rest[0] if rest else first.sum(0)
    found = np.fromfile(tmp_path / "out0.bin", kernel.outputs[0].dtype).reshape(exact.shape)
    np.testing.assert_allclose(found, exact, atol=np.abs(exact).max() * (4e-3 if rest else 1e-5), rtol=0)


REGISTRY = """
import os, sys
sys.path.insert(0, sys.argv[1])
import tensorrt_lean_bindings as trt
registry = trt.get_plugin_registry()
assert registry.load_library(sys.argv[2]) is not None
for creator in registry.all_creators:
    if creator.plugin_namespace == "taso_mirage":
        fields = [trt.PluginField("digest", sys.argv[3].encode(), trt.PluginFieldType.CHAR)]
        made = creator.create_plugin("n", trt.PluginFieldCollection(fields), trt.TensorRTPhase.BUILD)
        print(creator.name, creator.plugin_version, [f.name for f in creator.field_names], made is not None)
sys.stdout.flush()
os._exit(0)  # the runtime does not always end well without a GPU
"""


def subprocess_output(script: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(LEAN is None, reason="needs TENSORRT_LEAN_RUNTIME")
def test_registry_of_tensorrt_lists_the_creators(exported: Exported, built: Built) -> None:
    if version(built.include) < 10:
        pytest.skip("the registry of TensorRT 11 takes libraries made with the headers of version 10 or newer")
    first, second = exported.kernels
    said = subprocess_output(REGISTRY, str(LEAN), str(built.library), exported.kernels[first].digest)
    assert said.splitlines() == [f"{first} 1 ['digest'] True", f"{second} 1 ['digest'] False"]


PYTHON_PLUGIN = """
import enum, importlib, os, sys
sys.path[:0] = sys.argv[1:3]
import tensorrt_lean_bindings as trt
trt.TensorFormat = enum.Enum("TensorFormat", {"LINEAR": 0})  # the lean runtime builds no networks, so it lacks these two
trt.ITensor = type("ITensor", (), {})
sys.modules["tensorrt"] = trt
sys.modules["tensorrt.plugin"] = trt.plugin = importlib.import_module("tensorrt_lean_bindings.plugin")
import plugin_in_python as module
import tensorrt.plugin as trtp

name, digest = sys.argv[3:]
known = trtp._lib.QDP_REGISTRY[f"taso_mirage::{name}"]
half, single = trt.DataType.HALF, trt.DataType.FLOAT
matrix = trtp.TensorDesc(trtp.ShapeExprs(2, _is_dummy=True), half)
cube = trtp.TensorDesc(trtp.ShapeExprs(3, _is_dummy=True), half)
wrong = trtp.TensorDesc(trtp.ShapeExprs(2, _is_dummy=True), single)
(made,) = known.register_func(matrix, matrix, digest=digest)
print(made.dtype, made.ndim)
for arguments in ((cube, matrix, digest), (matrix, wrong, digest), (matrix, matrix, "0" * 16)):
    try:
        print(known.register_func(*arguments))
    except ValueError as error:
        print(error)
(found,) = known.autotune_func(matrix, matrix, (made,))[0]._get_combinations()
print(found.types == [half] * 3, found.layouts == [trt.TensorFormat.LINEAR] * 3)
symbol, ptx, params, extra = known.aot_impl_func(matrix, matrix, digest, (made,), 0)
print(symbol, f".entry {symbol}(" in ptx, len(extra))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(LEAN is None, reason="needs TENSORRT_LEAN_RUNTIME")
def test_python_plugin_registers_with_tensorrt(exported: Exported) -> None:
    name, kernel = next(iter(exported.kernels.items()))
    folders = str(LEAN), str(exported.folder)
    said = subprocess_output(PYTHON_PLUGIN, *folders, name, kernel.digest).splitlines()
    assert said[-6:] == [
        "DataType.HALF 2",
        f"{name}: input 0 has 3 dims, the kernel was made for 2",
        f"{name}: input 1 is DataType.FLOAT, the kernel takes DataType.HALF",
        f"{name}: the model is for the kernels {'0' * 16}, this module has {kernel.digest}",
        "True True",
        "kernel_0 True 0",
    ]


ENGINE = """
import os, sys
sys.path.insert(0, sys.argv[1])
import tensorrt_rtx_bindings as trt
log = trt.Logger(trt.Logger.ERROR)
builder = trt.Builder(log)
network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
parser = trt.OnnxParser(network, log)
print(parser.parse_from_file(sys.argv[2]), [str(parser.get_error(i)) for i in range(parser.num_errors)])
config = builder.create_builder_config()
config.num_compute_capabilities = 1
config.set_compute_capability(trt.ComputeCapability.SM80, 0)
engine = builder.build_serialized_network(network, config)
print(engine is not None and engine.nbytes > 0)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(RTX is None, reason="needs TENSORRT_RTX")
def test_tensorrt_reads_the_reference(exported: Exported) -> None:
    said = subprocess_output(ENGINE, str(RTX), str(exported.folder / "reference.onnx"))
    assert said.splitlines()[-2:] == ["True []", "True"]
