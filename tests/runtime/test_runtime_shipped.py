"""The statements of docs/shipping.md: its Python runs as it stands there, and so does a program
without Python that calls the C interface."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from fused_models import with_kernel

import taso_mirage
from taso_mirage.devices.cpu.compiler import compiler
from taso_mirage.runtime.register import register
from taso_mirage.targets import onnx_runtime

PAGE = Path(__file__).parents[2] / "docs" / "shipping.md"
CPP = Path(__file__).parents[2] / "taso_mirage" / "runtime" / "cpp"
PROGRAM = r"""
// ONNX Runtime by its C interface alone: the functions' places in its table, which only grows. Arguments: the runtime, the model, the
// library, the kernels ("" for none); floats come from standard input, and go to standard output.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ort.h"

namespace {
void* const* table;
template <class... Arguments>
void call(size_t place, Arguments... arguments) {
  OrtStatus* status = reinterpret_cast<OrtStatus* (*)(Arguments...)>(table[place])(arguments...);
  if (status == nullptr) return;
  printf("%s\n", reinterpret_cast<const char* (*)(const OrtStatus*)>(table[2])(status));
  exit(1);
}
struct OrtEnv;
struct OrtSession;
}  // namespace

int main(int, char** words) {
  void* runtime = dlopen(words[1], RTLD_NOW);
  if (runtime == nullptr) return puts(dlerror()), 2;
  const auto base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(runtime, "OrtGetApiBase"))();
  table = reinterpret_cast<void* const*>(base->GetApi(ort::VERSION));
  OrtEnv* env = nullptr;
  OrtSessionOptions* options = nullptr;
  OrtSession* session = nullptr;
  void* handle = nullptr;
  call(3, 2, "shipped", &env);  // CreateEnv, at the level of warnings
  call(10, &options);           // CreateSessionOptions
  if (words[4][0] != '\0') {
    call(130, options, "taso_mirage.kernels", static_cast<const char*>(words[4]));  // AddSessionConfigEntry
    call(130, options, "taso_mirage.cuda", "0");
    call(29, options, static_cast<const char*>(words[3]), &handle);  // RegisterCustomOpsLibrary
  }
  call(7, env, static_cast<const char*>(words[2]), options, &session);  // CreateSession
  std::vector<float> data(6 * 5);
  if (fread(data.data(), sizeof(float), data.size(), stdin) != data.size()) return 3;
  OrtMemoryInfo* memory = nullptr;
  call(69, 0, 0, &memory);  // CreateCpuMemoryInfo
  const int64_t dims[] = {6, 5};
  OrtValue *input = nullptr, *output = nullptr;
  const size_t bytes = data.size() * sizeof(float);
  call(49, memory, static_cast<void*>(data.data()), bytes, dims, size_t{2}, 1, &input);  // CreateTensorWithDataAsOrtValue
  const char *inputs[] = {"X"}, *outputs[] = {"output_0"};
  const OrtValue* const given[] = {input};
  call(9, session, static_cast<void*>(nullptr), inputs, given, size_t{1}, outputs, size_t{1}, &output);  // Run
  void* found = nullptr;
  call(51, output, &found);  // GetTensorMutableData
  fwrite(found, sizeof(float), data.size(), stdout);
  fflush(stdout);
  std::_Exit(0);
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_kernel(tmp_path_factory.mktemp("shipped"))


@pytest.fixture(scope="module")
def shipped(folder: Path) -> Path:
    """The folder after the page's Python has run in it, from the first block to the last."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    for i, block in enumerate(blocks):
        (folder / f"block{i}.py").write_text(block)
        done = subprocess.run([sys.executable, f"block{i}.py"], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.sampled(3)
def test_the_pages_python_makes_what_it_says(shipped: Path) -> None:
    assert {p.name for p in (shipped / "ship").iterdir()} == {"taso_mirage.so", "kernels.so"}
    files = {p.suffix: p.read_text() for p in (shipped / "audit").iterdir()}
    assert 'extern "C"' in files[".cpp"]
    assert "Gelu" in files[".txt"]


def test_a_session_runs_kernels_only_if_they_are_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def seen(options: Any, model: Any, cuda: bool) -> list[Any]:
        asked.append((model, cuda))
        return register(options, model, cuda=cuda)

    monkeypatch.setattr(onnx_runtime, "register", seen)
    path, x = folder / "model.optimized.onnx", np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    (plain,) = taso_mirage.session(path).run(None, {"X": x})
    assert asked == []
    (fast,) = taso_mirage.session(path, trust_kernels=True).run(None, {"X": x})
    assert asked == [(str(path), False)]
    np.testing.assert_allclose(fast, plain, rtol=1e-5, atol=1e-6)
    taso_mirage.session(folder / "model.onnx", trust_kernels=True)  # which has none
    assert len(asked) == 1


def test_a_program_without_python_runs_the_kernels(shipped: Path) -> None:
    found = sorted(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    if not found:
        pytest.skip("this wheel of onnxruntime has no libonnxruntime.so")
    (shipped / "program.cpp").write_text(PROGRAM)
    command = [
        *compiler(),
        "-std=c++17",
        f"-I{CPP}",
        "-o",
        str(shipped / "program"),
        str(shipped / "program.cpp"),
        "-ldl",
    ]
    subprocess.run(command, check=True)
    model, ship = shipped / "model.optimized.onnx", shipped / "ship"
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(None, {"X": x})

    def run(kernels: str) -> subprocess.CompletedProcess[bytes]:
        words = [shipped / "program", found[-1], model, ship / "taso_mirage.so", kernels]
        return subprocess.run(words, input=x.tobytes(), capture_output=True)

    for kernels in (str(ship / "kernels.so"), ""):
        done = run(kernels)
        assert done.returncode == 0, done.stdout
        np.testing.assert_allclose(np.frombuffer(done.stdout, np.float32).reshape(6, 5), wanted, rtol=1e-5, atol=1e-6)
    refused = run(str(model))
    assert refused.returncode == 1
    assert b"cannot be loaded" in refused.stdout
