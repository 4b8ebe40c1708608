"""The custom-operator library under sanitizers, without ONNX Runtime and without a GPU: a stand-in
for each calls it in the orders that the real ones do, at the end of a session and of a process."""

from __future__ import annotations

import os
import subprocess
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from taso_mirage.devices.cpu.compiler import compiler
from taso_mirage.emit.compile import TensorMap
from taso_mirage.runtime.compilation import LIBRARY
from taso_mirage.runtime.plan import KernelImage, sealed

pytestmark = pytest.mark.sampled(3, together=True)

CPP = Path(__file__).parents[2] / "taso_mirage" / "runtime" / "cpp"
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")

DRIVER = r"""
// A CUDA driver for tests whose modules are memory of the process, which a captured graph reads when it is destroyed.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>
namespace {
struct Module { std::string text; };
struct Map { size_t words[16]; };
struct Launch { Module* module; std::vector<Map> maps; };  // what a graph keeps of one: a copy of its parameters
std::vector<Launch>& captured() { static auto& all = *new std::vector<Launch>; return all; }
size_t context = 1, number = 1;
bool off = false, refused = false;
size_t maps = 0;
int done() { return off ? 4 : 0; }
}
extern "C" {
void stand_in_turn_off() { off = true; }
void stand_in_refuse_maps() { refused = true; }
void stand_in_context(size_t address, size_t id) { context = address, number = id; }
void stand_in_destroy_graph() {
  for (const Launch& each : captured()) {
    printf("graph of %s\n", each.module->text.c_str());
    for (const Map& map : each.maps) printf("map %zu to %zu\n", map.words[0], map.words[15]);
  }
  captured().clear();
}
int cuCtxGetCurrent(void** found) { *found = reinterpret_cast<void*>(context); return done(); }
int cuCtxSetCurrent(void* chosen) { context = reinterpret_cast<size_t>(chosen); return done(); }
int cuCtxGetId(void*, unsigned long long* found) { *found = number; return done(); }
int cuCtxGetDevice(int* found) { *found = 0; return done(); }
int cuDeviceGetAttribute(int* found, int which, int) { *found = which == 75 ? 9 : which == 76 ? 0 : 100000; return done(); }
int cuModuleLoadData(void** found, const void* data) {
  Module* made = new Module{static_cast<const char*>(data)};
  printf("load %s\n", made->text.c_str());
  *found = made;
  return done();
}
int cuModuleUnload(void* module) {
  if (off) return 4;
  printf("unload\n");
  delete static_cast<Module*>(module);
  return 0;
}
int cuModuleGetFunction(void** found, void* module, const char*) { *found = module; return done(); }
int cuFuncGetAttribute(int* found, int, void*) { *found = 1024; return done(); }
int cuFuncSetAttribute(void*, int, int) { return done(); }
int cuLaunchKernel(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void** arguments, void**) {
  captured().push_back({static_cast<Module*>(function), {}});
  if (maps > 0) captured().back().maps.push_back(*static_cast<Map*>(arguments[0]));
  printf("launch %s\n", static_cast<Module*>(function)->text.c_str());
  return done();
}
int cuTensorMapEncodeTiled(Map* map, int, unsigned, void*, const size_t*, const size_t*, const unsigned*, const unsigned*, int, int, int,
                           int) {
  if (refused) return 1;
  ++maps;
  for (size_t& word : map->words) word = maps;
  printf("encode\n");
  return done();
}
int cuStreamCreate(void**, unsigned) { return 1; }
int cuStreamDestroy_v2(void*) { return 1; }
int cuStreamWaitEvent(void*, void*, unsigned) { return 1; }
int cuEventCreate(void**, unsigned) { return 1; }
int cuEventRecord(void*, void*) { return 1; }
int cuEventDestroy_v2(void*) { return 1; }
int cuGetErrorString(int, const char** text) { *text = "driver shutting down"; return 0; }
}
"""

HARNESS = r"""
// ONNX Runtime, as far as nodes of one input and one output need it. The node that is made first lives until the process has called the
// destructors of the library, where the words do not say when it ends.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>
#include "ort.h"

extern "C" {
OrtStatus* RegisterCustomOps(OrtSessionOptions*, const OrtApiBase*);
void stand_in_turn_off();
void stand_in_refuse_maps();
void stand_in_context(size_t address, size_t id);
void stand_in_destroy_graph();
}
struct OrtStatus { std::string text; };
struct OrtKernelInfo { std::map<std::string, std::string> attributes; };

namespace {
// An operator's kernel, destroyed as the runtime does it: through the operator.
struct Node {
  const OrtCustomOp* op = nullptr;
  void* kernel = nullptr;
  void end() {
    if (kernel != nullptr) op->KernelDestroy(kernel);
    kernel = nullptr;
  }
  ~Node() { end(); }
};
Node last;  // constructed before anything of the library is, so destroyed after it
std::map<std::string, const OrtCustomOp*> operators;
void* table[400];
float numbers[2];

OrtStatus* no() { return nullptr; }
void nothing() {}
OrtStatus* failed(int, const char* text) { return new OrtStatus{text}; }
const char* message(const OrtStatus* status) { return status->text.c_str(); }
void release(OrtStatus* status) { delete status; }
OrtStatus* domain(const char*, OrtCustomOpDomain** made) { *made = nullptr; return nullptr; }
OrtStatus* add(OrtCustomOpDomain*, const OrtCustomOp* op) { operators.emplace(op->GetName(op), op); return nullptr; }
OrtStatus* has(const OrtSessionOptions*, const char* key, int* found) { *found = strcmp(key, "taso_mirage.cuda") == 0; return nullptr; }
OrtStatus* give(const std::string& text, char* out, size_t* size) {
  if (out != nullptr) memcpy(out, text.c_str(), text.size() + 1);
  *size = text.size() + 1;
  return nullptr;
}
OrtStatus* config(const OrtSessionOptions*, const char*, char* out, size_t* size) { return give("1", out, size); }
OrtStatus* node_name(const OrtKernelInfo*, char* out, size_t* size) { return give("node", out, size); }
OrtStatus* attribute(const OrtKernelInfo* info, const char* name, char* out, size_t* size) {
  const auto found = info->attributes.find(name);
  return found == info->attributes.end() ? failed(1, "no such attribute") : give(found->second, out, size);
}
OrtStatus* one(const OrtKernelContext*, size_t* found) { *found = 1; return nullptr; }
OrtStatus* input(const OrtKernelContext*, size_t, const OrtValue** found) { *found = reinterpret_cast<OrtValue*>(numbers); return nullptr; }
OrtStatus* output(OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue** found) {
  *found = reinterpret_cast<OrtValue*>(numbers);
  return nullptr;
}
OrtStatus* data(OrtValue*, void** found) { *found = numbers; return nullptr; }
OrtStatus* element(const ort::Info*, Element* found) { *found = 1; return nullptr; }
OrtStatus* rank(const ort::Info*, size_t* found) { *found = 1; return nullptr; }
OrtStatus* dims(const ort::Info*, int64_t* found, size_t) { *found = 2; return nullptr; }

const OrtApi* interface(uint32_t) {
  for (void*& each : table) each = reinterpret_cast<void*>(&no);
  const std::map<size_t, void*> known = {
      {0, (void*)&failed}, {2, (void*)&message}, {26, (void*)&domain}, {27, (void*)&add}, {51, (void*)&data}, {60, (void*)&element},
      {61, (void*)&rank}, {62, (void*)&dims}, {87, (void*)&attribute}, {88, (void*)&one}, {89, (void*)&one}, {90, (void*)&input},
      {91, (void*)&output}, {93, (void*)&release}, {99, (void*)&nothing}, {237, (void*)&has}, {238, (void*)&config},
      {244, (void*)&node_name}};
  for (const auto& [place, function] : known) table[place] = function;
  return reinterpret_cast<const OrtApi*>(table);
}

std::string file(const std::string& name) {
  std::ifstream in(name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void show(OrtStatus* status) {
  if (status == nullptr) return;
  printf("problem %s\n", status->text.c_str());
  delete status;
}
}  // namespace

// Words: a folder, then what happens. `make A` makes a node with the image A, `run` runs it, `end` destroys it; `map` before: its
// kernel takes a tensor map.
int main(int count, char** words) {
  const OrtApiBase base{&interface, nullptr};
  for (int session = 0; session < 3; ++session) show(RegisterCustomOps(nullptr, &base));
  last.op = operators.at("CudaKernel0");
  std::string plan = "/plan";
  for (int i = 2; i < count; ++i) {
    const std::string word = words[i];
    if (word == "make") {
      last.end();
      const std::string image = words[++i];
      OrtKernelInfo info{{{"plan", file(words[1] + plan)}}};
      if (const std::string code = file(std::string(words[1]) + "/" + image); !code.empty()) info.attributes["image_0"] = code;
      show(last.op->CreateKernelV2(last.op, nullptr, &info, &last.kernel));
    } else if (word == "run") {
      show(last.op->KernelComputeV2(last.kernel, nullptr));
    } else if (word == "end") {
      last.end();
    } else if (word == "graph") {
      stand_in_destroy_graph();
    } else if (word == "map") {
      plan = "/mapped";
    } else if (word == "refuse") {
      stand_in_refuse_maps();
    } else if (word == "off") {
      stand_in_turn_off();
    } else {
      stand_in_context(strtoul(word.c_str(), nullptr, 10), strtoul(words[++i], nullptr, 10));
    }
  }
}
"""


def plan_of(content: bytes, *maps: TensorMap) -> str:
    image = KernelImage(0, 90 if maps else 50, content, "k", 1, 0, 0, False, ptx=True, maps=maps)
    return sealed(["taso_mirage 1 cuda", "input float32 2", "output float32 2", "kernel 1 1 1 i0 o0", image.line])


SAME_SUM = sum((0x104C11DB7 >> (32 - i) & 1) << i for i in range(33))
"""The polynomial of CRC-32, as it lies in bytes: exclusive-or with it changes no checksum."""
CODE = b".version A     "
OTHER = CODE[:-5] + (int.from_bytes(CODE[-5:], "little") ^ SAME_SUM).to_bytes(5, "little")
LOAD, LAUNCH, GRAPH = (f"{word} {CODE.decode()}" for word in ("load", "launch", "graph of"))


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-ins, the library in the program, and a plan whose image has two
    contents."""
    folder = tmp_path_factory.mktemp("sanitized")
    mapped = plan_of(CODE, TensorMap(0, (2,), (1,), (4,), 0))
    for name, text in (("libcuda.cpp", DRIVER), ("harness.cpp", HARNESS), ("plan", plan_of(CODE)), ("mapped", mapped)):
        (folder / name).write_text(text)
    for name, content in (("A", CODE), ("B", OTHER)):
        (folder / name).write_bytes(b64encode(content))
    driver = folder / "libcuda.so.1"
    made = [*compiler(), "-std=c++17", "-g1", f"-I{CPP}", *SANITIZED]
    shared = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    subprocess.run([*made, *shared, "-o", str(driver), str(folder / "libcuda.cpp")], check=True)
    sources = [folder / "harness.cpp", *(CPP / name for name in LIBRARY)]

    def object_of(source: Path) -> str:
        subprocess.run([*made, "-c", "-o", str(folder / f"{source.stem}.o"), str(source)], check=True)
        return str(folder / f"{source.stem}.o")

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = list(threads.map(object_of, sources))
    subprocess.run([*made, "-o", str(folder / "process"), *objects, str(driver), "-ldl", "-pthread"], check=True)
    return folder


def said(process: Path, happens: str) -> list[str]:
    """The lines of the stand-ins; a sanitizer that complains, or memory that nothing points to at
    the end, fails the test."""
    known = {**os.environ, "LD_LIBRARY_PATH": str(process), "ASAN_OPTIONS": "detect_leaks=1"}
    done = subprocess.run([process / "process", process, *happens.split()], env=known, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return done.stdout.decode(errors="replace").splitlines()


@pytest.mark.slow
def test_a_graph_may_be_destroyed_after_the_nodes_that_it_captured(process: Path) -> None:
    """ONNX Runtime destroys a session's nodes before the provider that holds its CUDA graphs."""
    assert said(process, "make A run end graph") == [LOAD, LAUNCH, GRAPH]
    assert said(process, "make A run end make A run end graph") == [LOAD, LAUNCH, LAUNCH, GRAPH, GRAPH]


def test_a_node_may_be_destroyed_after_the_library(process: Path) -> None:
    """A program with a session in a global variable does this."""
    assert said(process, "make A run") == [LOAD, LAUNCH]


@pytest.mark.parametrize("end", ["", "end", "end graph"])
def test_a_node_may_be_destroyed_after_the_driver(process: Path, end: str) -> None:
    assert said(process, f"make A run off {end}")[:2] == [LOAD, LAUNCH]


@pytest.mark.parametrize(
    ("happens", "loads"),
    [
        ("make A end make A end make A", 1),
        ("make A make B make A make B", 2),  # the same plan: the checksums are equal
        ("make A 2 2 make A 1 1 make A", 2),  # another context
        ("make A 1 2 make A", 2),  # another context at the address of the first
    ],
)
def test_kernels_are_loaded_once_for_a_context_and_their_code(process: Path, happens: str, loads: int) -> None:
    assert OTHER != CODE
    assert plan_of(OTHER) == plan_of(CODE)
    assert [x.split()[0] for x in said(process, happens)] == ["load"] * loads


def test_what_cannot_be_loaded_leaves_nothing_behind(process: Path) -> None:
    found = said(process, "make missing make A 0 0 make A off make A")
    assert len(found) == 4, found
    assert "it has no text attribute 'image_0'; optimize the model again; load it without this library" in found[0]
    assert found[1] == LOAD
    assert "there is no CUDA context" in found[2]
    assert "CUDA error 4, driver shutting down" in found[3]


def test_a_graph_keeps_its_own_copy_of_a_tensor_map(process: Path) -> None:
    """The map is made once, for two nodes; the graph is destroyed when both are gone."""
    found = said(process, "map make A run run end make A run end graph")
    assert found == [LOAD, "encode", *[LAUNCH] * 3, *[GRAPH, "map 1 to 1"] * 3]


def test_a_map_that_the_driver_refuses_is_an_error_of_the_node(process: Path) -> None:
    """The error is that of any launch that fails; the next run asks again."""
    found = said(process, "map make A refuse run run end")
    assert found[0] == LOAD
    problem = "problem node 'node' (taso_mirage.CudaKernel0): argument 0 of k, float32 2 at 0x"
    assert [line.startswith(problem) and "has no tensor map: CUDA error 1" in line for line in found[1:]] == [
        True,
        True,
    ]
