"""A driver of CUDA that prints its calls, and the runtime's library with it."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from taso_mirage.devices.cpu.compiler import compiler
from taso_mirage.runtime import library
from taso_mirage.runtime.plan import PlannedNode

CPP = Path(__file__).parents[2] / "taso_mirage" / "runtime" / "cpp"


def cubin(sections: int = 3, body: bytes = b"code") -> bytes:
    """The smallest thing that has the form of a cubin: a header, a body and the headers of its
    sections."""
    head = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(body), 0, 64, 56, 0, 64, sections, 0)
    )
    table = b"".join(struct.pack("<IIQQQQIIQQ", 0, 1, 0, 0, 64, len(body), 0, 0, 0, 0) for _ in range(sections))
    return head + body + table


def check(plan: str | bytes, contents: Sequence[bytes] = ()) -> str:
    """The library's error about a plan and its images' attributes; empty if they are right."""
    run = ctypes.CDLL(str(library())).taso_mirage_check
    text = plan.encode() if isinstance(plan, str) else plan
    array = (ctypes.c_char_p * len(contents))(*contents)
    sizes = (ctypes.c_size_t * len(contents))(*map(len, contents))
    message = ctypes.create_string_buffer(2000)
    wrong = run(
        text, ctypes.c_size_t(len(text)), array, sizes, ctypes.c_size_t(len(contents)), message, ctypes.c_size_t(2000)
    )
    assert bool(wrong) == bool(message.value)
    return message.value.decode(errors="replace")


def encoded(kernel: PlannedNode) -> list[bytes]:
    return [b64encode(x) for x in kernel.images]


DRIVER = r"""
// A driver for tests: a device of the capability $CAPABILITY that says what it is asked for.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
namespace {
struct Attribute { int id; char pad[4]; int allowed; char rest[60]; };
struct Config { unsigned grid[3], block[3], shared; void* stream; Attribute* attributes; unsigned count; };
void* context = reinterpret_cast<void*>(strtoul(getenv("CONTEXT"), nullptr, 10));
std::vector<std::string>& names() { static std::vector<std::string> found; return found; }
bool is_size(size_t i) { return getenv("SIZES") != nullptr && i >= strtoul(getenv("SIZES"), nullptr, 10); }
// Bytes of a parameter: by number in PARAMETERS, as the code of the first kernel declares them, else a size or an address.
size_t bytes_of(size_t i) {
  const char* text = getenv("PARAMETERS");
  for (size_t k = 0; text != nullptr && k < i; ++k) text = strchr(text, ',') == nullptr ? nullptr : strchr(text, ',') + 1;
  return text != nullptr ? strtoul(text, nullptr, 10) : is_size(i) ? 4 : 8;
}
template <class Number>
void show(const char* name, const Number* numbers, unsigned count) {
  printf(" %s", name);
  for (unsigned i = 0; i < count; ++i) printf("%c%llu", i == 0 ? ' ' : ',', static_cast<unsigned long long>(numbers[i]));
}
void show(void* function, const unsigned* grid, unsigned threads, unsigned shared, void* stream, void** arguments, int overlap) {
  const std::string& name = names()[reinterpret_cast<size_t>(function) - 1];
  printf("launch %s %u %u %u threads %u shared %u stream %p overlap %d:", name.c_str(), grid[0], grid[1], grid[2], threads, shared, stream,
         overlap);
  for (size_t i = 0; i < strtoul(getenv("ARGUMENTS"), nullptr, 10); ++i)
    bytes_of(i) == 128 ? printf(" map %zu", *static_cast<size_t*>(arguments[i]))
    : bytes_of(i) == 4 ? printf(" n=%d", *static_cast<int*>(arguments[i]))
                       : printf(" %zx", *static_cast<size_t*>(arguments[i]));
  printf("\n");
}
}
extern "C" {
int cuCtxGetCurrent(void** found) { *found = context; return 0; }
int cuCtxSetCurrent(void* chosen) { printf("context %p\n", context = chosen); return 0; }
int cuCtxGetDevice(int* found) { *found = 0; return 0; }
int cuDeviceGetAttribute(int* found, int which, int) {
  const int capability = atoi(getenv("CAPABILITY"));
  *found = which == 75 ? capability / 10 : which == 76 ? capability % 10 : getenv("SHARED") ? atoi(getenv("SHARED")) : 100000;
  return 0;
}
int cuModuleLoadData(void** found, const void* data) {
  *found = const_cast<void*>(data);
  const char* text = static_cast<const char*>(data);
  const std::string body = memcmp(text, "\177ELF", 4) == 0 ? std::string(text + 64, 8) : "ptx";
  printf("load %s\n", body == "ptx" || body.substr(0, 6) == "kernel" ? body.c_str() : "cubin");
  return 0;
}
int cuModuleUnload(void*) { printf("unload\n"); return 0; }
int cuModuleGetFunction(void** found, void*, const char* name) {
  names().push_back(name);
  *found = reinterpret_cast<void*>(names().size());
  return 0;
}
int cuFuncGetAttribute(int* found, int, void*) { *found = atoi(getenv("THREADS")); return 0; }
int cuFuncSetAttribute(void*, int which, int value) { printf("set %d %d\n", which, value); return 0; }
int cuFuncGetParamInfo(void* function, size_t i, size_t*, size_t* size) {
  *size = bytes_of(i);
  return i < strtoul(getenv(names()[reinterpret_cast<size_t>(function) - 1].c_str()), nullptr, 10) ? 0 : 1;
}
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned, unsigned shared,
                   void* stream, void** arguments, void**) {
  const unsigned grid[] = {x, y, z};
  show(function, grid, threads, shared, stream, arguments, 0);
  return getenv("FAILS") ? 700 : 0;
}
int cuLaunchKernelEx(const Config* c, void* function, void** arguments, void**) {
  int overlap = c->count == 0 ? -1 : 0;
  for (unsigned i = 0; i < c->count; ++i)
    if (c->attributes[i].id == 6) overlap = c->attributes[i].allowed;
    else {
      const int* dims = &c->attributes[i].allowed;
      printf("attribute %d of %d %d %d\n", c->attributes[i].id, dims[0], dims[1], dims[2]);
    }
  show(function, c->grid, c->block[0], c->shared, c->stream, arguments, overlap);
  return 0;
}
#ifndef WITHOUT_MAPS
// As the real one it refuses what is not aligned; the map has the number of the call.
int cuTensorMapEncodeTiled(size_t* map, int type, unsigned rank, void* address, const size_t* dims, const size_t* strides,
                           const unsigned* box, const unsigned* steps, int interleave, int swizzle, int promotion, int fill) {
  static size_t calls = 0;
  printf("encode type %d at %p", type, address);
  show("dims", dims, rank);
  show("strides", strides, rank - 1);
  show("box", box, rank);
  show("steps", steps, rank);
  printf(" interleave %d swizzle %d promotion %d fill %d\n", interleave, swizzle, promotion, fill);
  if (reinterpret_cast<size_t>(map) % 64 != 0 || reinterpret_cast<size_t>(address) % 16 != 0 || getenv("ENCODE_FAILS")) return 1;
  for (size_t i = 0; i < 16; ++i) map[i] = calls;
  ++calls;
  return 0;
}
#endif
int cuGetErrorString(int, const char** text) { *text = "illegal address"; return 0; }
int cuStreamCreate(void** found, unsigned) { static size_t made = 0x60; *found = reinterpret_cast<void*>(++made); return 0; }
int cuStreamDestroy_v2(void* stream) { printf("end of stream %p\n", stream); return 0; }
int cuEventCreate(void** found, unsigned) { static size_t made = 0x70; *found = reinterpret_cast<void*>(++made); return 0; }
int cuEventDestroy_v2(void* event) { printf("end of event %p\n", event); return 0; }
int cuEventRecord(void* event, void* stream) { printf("record %p on %p\n", event, stream); return 0; }
int cuStreamWaitEvent(void* stream, void* event, unsigned) { printf("wait of %p for %p\n", stream, event); return 0; }
}
"""
HARNESS = r"""
// Without arguments: reads and checks plans and images, each after its size. With a folder and sizes: loads the kernels of the plan
// there and launches them for these sizes of input 0: once, or where each letter of LAUNCHES says, at addresses of its own; tensors of a
// kind lie APART bytes behind each other. With IN_PLACE the results have the addresses of the inputs.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include "cuda.h"

void check(std::string_view view) {
  if (view.substr(0, 11) != "taso_mirage")
    return cuda::check(plan::Image{0, 90, false, "kernel", 1, 0, 0, false, view.size(), 0}, view);
  const plan::Plan found = plan::parse(view);
  const plan::Sizes sizes{{"rows", 3}};
  for (const plan::Kernel& each : found.kernels) each.blocks(sizes);
  for (const plan::Type& each : found.outputs) each.bytes(sizes);
}

int check_all() {
  size_t size, good = 0, bad = 0;
  while (fread(&size, sizeof size, 1, stdin) == 1) {
    std::vector<char> text(size);
    if (fread(text.data(), 1, size, stdin) != size) return 2;
    try {
      check({text.data(), size});
      ++good;
    } catch (const plan::Problem&) {
      ++bad;
    }
  }
  printf("%zu %zu\n", good, bad);
  return 0;
}

std::string file(const std::string& name) {
  std::ifstream in(name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// What another thread, or other code of this one, does between a kernel's loading and its launch.
void change(void* context) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  reinterpret_cast<int (*)(void*)>(dlsym(driver, "cuCtxSetCurrent"))(context);
}

void launch(const std::string& folder, const std::vector<int64_t>& dims) {
  const plan::Plan found = plan::parse(file(folder + "/plan"));
  plan::Sizes sizes;
  found.bind(0, found.inputs[0].element, dims.data(), dims.size(), sizes);
  const auto loaded = cuda::load(found, [&](size_t i) { return file(folder + "/image_" + std::to_string(i)); });
  if (getenv("OTHER") != nullptr) change(reinterpret_cast<void*>(strtoul(getenv("OTHER"), nullptr, 10)));
  const size_t apart = getenv("APART") == nullptr ? 1 : strtoul(getenv("APART"), nullptr, 10);
  for (const char letter : std::string(getenv("LAUNCHES") == nullptr ? "a" : getenv("LAUNCHES"))) {
    const void* places[3][16];
    const size_t from = 0x1000 * static_cast<size_t>((letter - 'a') & 0xff);
    const size_t starts[] = {0x100, getenv("IN_PLACE") == nullptr ? 0x200u : 0x100u, 0x300};
    for (size_t role = 0; role < 3; ++role)
      for (size_t i = 0; i < 16; ++i) places[role][i] = reinterpret_cast<void*>(from + starts[role] + i * apart);
    const void* const* tensors[] = {places[0], places[1], places[2]};
    loaded->launch(found, tensors, sizes, reinterpret_cast<void*>(0x55));
  }
  for (int64_t n : found.outputs[0].shape(sizes)) printf("output %ld\n", static_cast<long>(n));
}

int main(int count, char** words) {
  if (count == 1) return check_all();
  std::vector<int64_t> dims;
  for (int i = 2; i < count; ++i) dims.push_back(atoll(words[i]));
  try {
    launch(words[1], dims);
  } catch (const plan::Problem& problem) {
    printf("problem %s\n", problem.what());
  }
}
"""
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    """A folder with a stand-in for libcuda.so.1, and a program that launches the kernels of a plan:
    made by the worker that is first, and the same for all."""
    whole = shared / "driver"
    if whole.exists():
        return whole
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text(DRIVER)
    command = [
        *compiler(),
        "-std=c++17",
        "-shared",
        "-fPIC",
        "-o",
        str(folder / "libcuda.so.1"),
        str(folder / "driver.cpp"),
    ]
    subprocess.run(command, check=True)
    (folder / "harness.cpp").write_text(HARNESS)
    files = [str(folder / "harness.cpp"), *(str(CPP / f"{x}.cpp") for x in ("plan", "driver", "tensor_maps", "cuda"))]
    harness = [*compiler(), "-std=c++17", f"-I{CPP}", *SANITIZED, "-o", str(folder / "harness"), *files, "-ldl"]
    subprocess.run(harness, check=True)
    with suppress(OSError):  # another worker was faster
        folder.rename(whole)
    return whole


def launched(
    driver: Path,
    folder: Path,
    kernel: PlannedNode,
    capability: int = 90,
    sizes: Sequence[int] = (2, 6, 5),
    **env: object,
) -> list[str]:
    for name, text in kernel.attributes.items():
        (folder / name).write_text(text)
    said = {
        k: str(v)
        for k, v in {
            "CAPABILITY": capability,
            "THREADS": 1024,
            "ARGUMENTS": 6,
            "CONTEXT": 7,
            "kernel_0": 8,
            "kernel_1": 6,
            **env,
        }.items()
    }
    known = {**os.environ, "LD_LIBRARY_PATH": str(driver), "ASAN_OPTIONS": "detect_leaks=1", **said}
    done = subprocess.run(
        [driver / "harness", str(folder), *map(str, sizes)], env=known, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()
