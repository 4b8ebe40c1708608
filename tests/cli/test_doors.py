"""Every way in: no command with any of its options, and nothing that opens a model, runs code that
the model carries, unless its user says so. Functions are found by introspection, so that new ones
have to be listed here."""

from __future__ import annotations

import ast
import base64
import inspect
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from commandline import Done, commands, run
from onnx import TensorProto, helper, numpy_helper
from sources import nodes

import taso_mirage
from taso_mirage import optimize_options as options
from taso_mirage.devices.cpu.compiler import compiler
from taso_mirage.errors import InvalidModel, TasoMirageError, Unsupported
from taso_mirage.measure import session as runtime
from taso_mirage.measure.child import child
from taso_mirage.measure.fine import Fine
from taso_mirage.measure.session import Session
from taso_mirage.measure.target import CPU
from taso_mirage.onnx_io import load, serialize
from taso_mirage.onnx_io.files import load_as_data
from taso_mirage.runtime.embed import embed
from taso_mirage.runtime.register import PLAN_FORMAT, carries_kernels
from taso_mirage.targets import onnx_runtime, packaging, profile
from taso_mirage.targets.known import TARGETS
from taso_mirage.targets.protocol import Target, Trusted

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "taso_mirage"
PLANTED = "planted_by_the_model"
SOURCE = f"""
#include <cstdio>
__attribute__((constructor)) static void {PLANTED}() {{ if (FILE* file = std::fopen("CANARY", "w")) std::fclose(file); }}
"""
PTX = f".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry {PLANTED}(.param .u64 a, .param .u64 b) {{ ret; }}\n"
INPUTS = {"x": np.ones((2, 8), np.float32)}


# ---------------------------------------------------------------- models


def sealed(*lines: str) -> str:
    above = "\n".join([*lines, ""])
    return f"{above}check {zlib.crc32(above.encode()):08x}\n"


def code(canary: Path) -> onnx.ModelProto:
    """A model with a kernel in C++ whose constructor makes the canary, and one in PTX, both called
    by functions that have ordinary operators beside them, as the optimizer writes them."""
    types = ("input float32 2 8", "output float32 2 8")
    row = f"image 0 80 ptx {PLANTED} 1 0 0 0 {len(PTX)} {zlib.crc32(PTX.encode()):08x}"
    plans = {
        "CpuKernel0": {"plan": sealed(f"taso_mirage {PLAN_FORMAT} cpu", *types, f"entry {PLANTED}")},
        "CudaKernel0": {
            "plan": sealed(f"taso_mirage {PLAN_FORMAT} cuda", *types, "kernel 1 1 1 i0 o0", row),
            "image_0": base64.b64encode(PTX.encode()).decode(),
        },
    }
    functions = []
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("taso_mirage", 1)]
    for name, plan in plans.items():
        relu = [helper.make_node("Relu", ["a"], ["b"])]
        functions.append(helper.make_function("taso_mirage", name, ["a"], ["b"], relu, opsets, [*plan]))
        call = [helper.make_node(name, ["a"], ["b"], domain="taso_mirage", **plan)]
        functions.append(helper.make_function("taso_mirage", f"kernel_{name}", ["a"], ["b"], call, opsets))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("kernel_CpuKernel0", ["m"], ["p"], domain="taso_mirage"),
        helper.make_node("kernel_CudaKernel0", ["p"], ["q"], domain="taso_mirage"),
        helper.make_node("Relu", ["q"], ["y"]),
    ]
    weight = numpy_helper.from_array(np.eye(8, dtype=np.float32) + 1, "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 8]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    made = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9)
    for key, text in {
        "format": str(PLAN_FORMAT),
        f"cpp.{PLANTED}": SOURCE.replace("CANARY", str(canary)),
        "triton.kernel_0": f"open({str(canary)!r}, 'w')",
    }.items():
        made.metadata_props.add(key=f"taso_mirage.{key}", value=text)
    return made


def plan(embedded: bool) -> onnx.ModelProto:
    """A model whose node holds a runtime's compiled code for a device, or names a file with it."""
    held: dict[str, Any] = {"embed_mode": int(embedded), "main_context": 1, "source": "TensorrtExecutionProvider"}
    held["ep_cache_context"] = b"ftrt" * 8 if embedded else "plan.engine"
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **held)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=9)


@dataclass
class Place:
    """A folder with such models and their files, and the calls of a compiler."""

    folder: Path

    @property
    def canary(self) -> Path:
        return self.folder / "canary"

    @property
    def model(self) -> Path:
        return self.folder / "code.onnx"

    def compiled(self) -> str:
        """The compiler's input since the last call of this method."""
        log = self.folder / "compiler.log"
        said = log.read_text() if log.exists() else ""
        log.unlink(missing_ok=True)
        return said

    def ran(self, own: bool = False) -> bool:
        """Whether a compiler was started since this was asked last, be it for the library that runs
        kernels; with `own`, which is for kernels that are made here, whether it was for the
        model's."""
        said = self.compiled()
        return self.canary.exists() or (PLANTED in said if own else bool(said))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place(tmp_path)
    (tmp_path / "cache").mkdir()
    script = tmp_path / "compiler.sh"
    given = f'for each; do case "$each" in *.cpp) cat "$each" >> {tmp_path}/compiler.log;; esac; done'
    script.write_text(f"#!/bin/sh\necho called >> {tmp_path}/compiler.log\n{given}\nexit 1\n")
    script.chmod(0o755)
    onnx.save(code(made.canary), made.model)
    for name, embedded in (("embedded", True), ("named", False)):
        onnx.save(plan(embedded), tmp_path / f"{name}.onnx")
    (tmp_path / "plan.engine").write_bytes(b"ftrt" * 8)
    np.savez(tmp_path / "x.npz", **INPUTS)  # type: ignore[arg-type]
    (tmp_path / "rules.toml").write_text("")
    (tmp_path / "certificate.json").write_text(json.dumps({"code": SOURCE}))
    with zipfile.ZipFile(tmp_path / "cache.zip", "w") as archive:
        archive.writestr("manifest.json", '{"format": 1}')
        archive.writestr("costs.jsonl", "")
        archive.writestr(f"kernels/{'0' * 32}.json", json.dumps({"source": SOURCE, "mugraph": {"program": [SOURCE]}}))
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("TASO_MIRAGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    child().stop()  # the child has the environment of its start
    compiler.cache_clear()
    yield made
    child().stop()
    compiler.cache_clear()


# ---------------------------------------------------------------- commands


QUICK = ("--budget", "0")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "optimize": ("code.onnx", *QUICK, "--no-measure", "--kernels", "off", "-o", "out.onnx"),
    "kernels": ("code.onnx", *QUICK),
    "mutants": ("code.onnx", *QUICK, "--no-measure"),
    "export-plugin": ("code.onnx", "--shape", "batch:2"),
    "verify": ("code.onnx", "code.onnx", "certificate.json"),
    "inspect": ("code.onnx",),
    "diff": ("code.onnx", "code.onnx"),
    "cache import": ("cache.zip",),
    "cache export": ("exported.zip",),
    "cache show": (),
    "cache clear": ("--yes",),
    "doctor": (),
    "schema": ("kernels",),
    "": ("--version",),
}
"""The commands over the model, each as it is quickest."""
WITHOUT_MODELS = {f"substitutions {name}" for name in ("list", "show", "explain", "verify", "generate")}
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "--output": ("--output", "written"),
    "--target": ("--target", "openvino"),
    "--effort": ("--effort", "quick"),
    "--strategy": ("--strategy", "saturate"),
    "--shape": ("--shape", "batch:3"),
    "--threads": ("--threads", "1"),
    "--inputs": ("--inputs", "x.npz"),
    "--budget": ("--budget", "0.5"),
    "--run-limit": ("--run-limit", "20"),
    "--kernels": ("--kernels", "search", "--budget", "5"),
    "--alpha": ("--alpha", "1"),
    "--scheduler": ("--scheduler", "nowhere"),
    "--report": ("--report", "page.html"),
    "--certificate": ("--certificate", "written.json"),
    "--allow-rounding": ("--allow-rounding", "1"),
    "--rules": ("--rules", "rules.toml"),
    "--checkpoint": ("--checkpoint", "checkpoint.json"),
    "--node": ("--node", "product"),
    "--depth": ("--depth", "2"),
    "--limit": ("--limit", "2"),
    "--trace": ("--trace", "traced"),
    "--show": ("--show", "1"),
}
"""Arguments for the options that take a value; the others are flags."""
TRUSTS = "--trust-kernels"
TRUSTING = {("optimize", TRUSTS), ("diff", TRUSTS)}
"""Where the user says that the model's kernels may run."""
OWN = {("optimize", "--kernels")}
"""Where kernels that are made here are compiled."""
SHELL = {"--install-completion", "--show-completion"}
"""Options of the shell's, which change files of the user's."""


def given(option: Any) -> tuple[str, ...]:
    """An option as it is tried; KeyError for one that takes a value and is not known here."""
    name = next(each for each in option.opts if each.startswith("--"))
    return (name,) if option.is_flag else OPTIONS[name]


def answered(words: str, *args: str) -> Done:
    done = run(*words.split(), *args, check=None)
    assert done.returncode in (0, 2, 3, 4, 5, 6), (words, args, done.stderr)
    return done


def test_every_command_is_known_here() -> None:
    there = commands()
    assert set(there) == set(COMMANDS) | WITHOUT_MODELS
    for words in WITHOUT_MODELS:
        assert not [each for each in there[words].params if "onnx" in f"{each.metavar} {each.name}".lower()]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("words", COMMANDS)
def test_no_command_runs_code_of_a_model(words: str, place: Place) -> None:
    """With each option alone, and with all that only say yes."""
    answered(words, *COMMANDS[words])
    assert not place.ran()
    trusted = set()
    options = [each for each in commands()[words].params if each.param_type_name == "option"]
    tried = [each for each in options if not SHELL & set(each.opts)]
    for option in tried:
        args = given(option)
        answered(words, *COMMANDS[words], *args)
        if place.ran(own=(words, args[0]) in OWN):
            trusted.add((words, args[0]))
    assert trusted == {each for each in TRUSTING if each[0] == words}
    flags = [
        name for each in tried if each.is_flag and (name := given(each)[0]) != TRUSTS and each.opts[0] != "--version"
    ]
    answered(words, *COMMANDS[words], *flags, *([*OPTIONS["--shape"]] if "--profile" in flags else []))
    assert not place.ran()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["embedded", "named"])
@pytest.mark.parametrize("words", [words for words, args in COMMANDS.items() if "code.onnx" in args])
def test_a_compiled_plan_is_refused(words: str, name: str, place: Place) -> None:
    args = [f"{name}.onnx" if each == "code.onnx" else each for each in COMMANDS[words]]
    done = answered(words, *args)
    assert not place.ran()
    if words != "inspect":  # `inspect` shows compiled plans, too
        assert (done.returncode, "compiled for one device" in done.stderr) == (3, True), done.stderr
        assert not (place.folder / "out.onnx").exists()


@pytest.mark.parametrize("operator", ["EPContext", "PythonOp"])
def test_code_is_refused_wherever_it_stands(operator: str, tmp_path: Path) -> None:
    """In a body, in a function, in a body inside of one."""
    node = helper.make_node(operator, ["x"], ["y"], domain="com.microsoft")
    opsets = [helper.make_opsetid(domain, 1) for domain in ("com.microsoft", "f")] + [helper.make_opsetid("", 17)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    flag = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    branch = helper.make_graph([node], "b", [], [y])
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    called = helper.make_node("F", ["x", "c"], ["y"], domain="f")
    for outer, inner in ((choice, []), (called, [node]), (called, [choice])):
        functions = [helper.make_function("f", "F", ["x", "c"], ["y"], inner, opsets)] if inner else []
        graph = helper.make_graph([outer], "g", [x, flag], [y])
        onnx.save(
            helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9), tmp_path / "m.onnx"
        )
        with pytest.raises(InvalidModel, match=operator):
            load(tmp_path / "m.onnx")


def test_inspect_shows_kernels_and_profiles_their_operators(place: Place) -> None:
    done = run("inspect", "code.onnx", "--profile", "--json")
    found = json.loads(done.stdout)
    assert {row["node"] for row in found["opaque"]} == {
        f"taso_mirage::kernel_{n}" for n in ("CpuKernel0", "CudaKernel0")
    }
    assert found["profile"]["floats"]["operators"]
    assert not place.ran()
    assert "com.microsoft::EPContext" in run("inspect", "embedded.onnx").stdout.replace("\n", "")


def test_a_folder_of_models_runs_none_of_their_code(place: Place) -> None:
    (place.folder / "models").mkdir()
    place.model.rename(place.folder / "models" / "code.onnx")
    answered("optimize", "models", *QUICK, "--no-measure", "--kernels", "off", "-o", "made")
    assert (place.folder / "made" / "code.onnx").exists()
    assert not place.ran()
    assert not carries_kernels(place.folder / "made" / "code.onnx")


def test_a_model_sets_no_options_of_the_runtime(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option of the model would write the runtime's profile into the user's folder."""
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    proto = onnx.load(place.model)
    proto.metadata_props.add(key="ort_config", value='{"session_options": {"enable_profiling": 1}}')
    onnx.save(proto, place.model)
    before = set(place.folder.iterdir())
    run("diff", "code.onnx", "code.onnx")
    assert set(place.folder.iterdir()) == before


def test_what_is_no_onnx_is_not_opened_as_something_else(place: Place) -> None:
    """Runtimes tell formats by the name of a file, or by its first bytes."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(place.folder / "m.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(place.model.read_bytes(), options, providers=["CPUExecutionProvider"])
    file = place.folder / "m.ort"
    for source in (file, file.read_bytes()):
        for target in (None, "cpu", "openvino"):
            with pytest.raises(TasoMirageError):
                taso_mirage.session(source, target)
        with pytest.raises(TasoMirageError):
            Session(str(source) if source is file else source)


# ---------------------------------------------------------------- the interface for Python


def test_the_interface_for_python(place: Place) -> None:
    """Four of the functions that users call take models; two of these run code where they are told
    to."""
    assert set(taso_mirage.__all__) == {
        "RuleSet",
        "new_graph",
        "optimize",
        "register",
        "rules",
        "session",
        "superoptimize",
    }
    told = {each.name for each in fields(options.Options)}
    asked = {each.name for each in commands()["optimize"].params} - {"model", "as_json"}
    assert told - asked == {"began", "progress", "candidates", "stop", "command"}
    quick: dict[str, Any] = {"budget": 0.0, "measure": False, "kernels": "off", "elsewhere": False}
    proto = onnx.load(place.model)
    for model in (proto, ir.from_proto(proto), place.model, str(place.model)):
        taso_mirage.optimize(model, **quick)
    assert set(inspect.signature(taso_mirage.session).parameters) == {
        *("model", "target", "trust_kernels", "cuda_graph", "options")
    }
    content = place.model.read_bytes()
    for source in (content, place.model, str(place.model)):
        taso_mirage.session(source)
        with suppress(TasoMirageError):  # OpenVINO takes no calls of functions
            taso_mirage.session(source, "openvino")
    assert not place.ran()
    with pytest.raises(TasoMirageError):
        taso_mirage.session(place.model, trust_kernels=True)
    assert place.ran()
    with pytest.raises(TasoMirageError):
        taso_mirage.register(__import__("onnxruntime").SessionOptions(), place.model)
    assert place.ran()


Opening = Callable[[Any], object]
"""A function that opens a model, given as a file, its bytes, or a Model."""


def opening() -> dict[str, tuple[bool, Opening]]:
    """Everything that opens its argument in a runtime, by module and name, and whether it is given
    a Model."""
    providers = ["CPUExecutionProvider"]
    return {
        "session.Session": (False, lambda source: Session(source).run(INPUTS)),
        "session.open_in_child": (True, lambda model: runtime.open_in_child(model).run(INPUTS)),
        "session.open_part": (True, lambda model: runtime.open_part(model).run(INPUTS)),
        "session.original": (True, lambda model: runtime.original(model).run(INPUTS)),
        "session.profile": (True, lambda model: runtime.profile(model, INPUTS, 0.0)),
        "session.timed_nodes": (True, lambda model: runtime.timed_nodes(model, INPUTS, 0.0)),
        "session.operators": (False, runtime.operators),
        "session.runnable": (True, lambda model: Session(runtime.runnable(model)).run(INPUTS)),
        "session.check_source": (True, runtime.check_source),
        "session.weight_bytes": (True, runtime.weight_bytes),
        "onnx_runtime.inference_session": (False, lambda source: onnx_runtime.inference_session(source, providers)),
        "onnx_runtime.opened_session": (False, lambda source: onnx_runtime.opened_session(source, providers)),
        "onnx_runtime.runtime_nodes": (False, lambda source: onnx_runtime.runtime_nodes(source, providers)),
        "onnx_runtime.dumped_graph": (False, dumped),
        "onnx_runtime.starts": (False, lambda source: onnx_runtime.starts(source, providers[0])),
        "profile.profiled": (False, lambda source: profile.profiled(source, providers, INPUTS, 0.0)),
        "profile.profiled_seconds": (False, lambda source: profile.profiled_seconds(source, providers, INPUTS, 0.0)),
        "profile.optimized_operators": (False, lambda source: profile.optimized_operators(source, providers)),
        "packaging.stamped": (True, lambda model: packaging.stamped(model, CPU)),
        "fine.opened": (True, lambda model: Fine(frozenset()).opened(model, CPU)),
    }


def dumped(source: bytes) -> str:
    with TemporaryDirectory() as folder:
        return onnx_runtime.dumped_graph(source, ["CPUExecutionProvider"], folder)


GIVEN = ("Source", "bytes", "Model", "bytes | str", "Source | _Source")
"""The types of parameters that may be a model."""


def models_given(*modules: ModuleType) -> Iterator[str]:
    """The functions and classes of a module that are given a model."""
    for module in modules:
        for name, each in vars(module).items():
            if name.startswith("_") or getattr(each, "__module__", "") != module.__name__ or not callable(each):
                continue
            parameters = inspect.signature(each).parameters
            if any(p.annotation in GIVEN and p.name in ("source", "content", "model") for p in parameters.values()):
                yield f"{module.__name__.rpartition('.')[2]}.{name}"


def test_what_opens_models_is_known_here() -> None:
    found = set(models_given(runtime, onnx_runtime, profile, packaging))
    assert found | {"fine.opened"} == set(opening())


@pytest.mark.parametrize("name", opening())
def test_what_opens_models_runs_no_code_of_them(name: str, place: Place) -> None:
    as_model, opens = opening()[name]
    sources: list[Any] = [load(place.model), load_as_data(place.model)]
    if not as_model:
        sources = [place.model.read_bytes(), str(place.model)]
    for source in sources:
        opens(source)
    assert not place.ran()


def test_targets_run_no_code_of_models(place: Place) -> None:
    """Each way into a target, by the members of its protocol that take a model."""
    methods = {name: each for name, each in vars(Target).items() if inspect.isfunction(each)}
    taking = {name for name, each in methods.items() if "Source" in [p.annotation for p in parameters(each)]}
    assert taking == {"open", "opened", "nodes"}
    for target in TARGETS.values():
        ways: list[Opening] = [partial(target.open, alone=False, apart={}), target.nodes]
        ways.append(partial(target.opened, stamp=target.stamp, graph=False, options=None))
        for way in ways:
            for source in (place.model.read_bytes(), str(place.model)):
                with suppress(TasoMirageError):  # there is no GPU, and OpenVINO takes no calls of functions
                    way(source)
            assert not place.ran()
            with suppress(TasoMirageError):
                way(Trusted(str(place.model)))
            assert place.ran() == (target.name != "openvino"), (target.name, way)


def parameters(function: Any) -> list[inspect.Parameter]:
    return [*inspect.signature(function).parameters.values()]


def test_a_model_from_pytorch_brings_no_code(place: Place) -> None:
    """An exported model is opened as it is, to be compared with the optimized one."""
    torch = pytest.importorskip("torch")
    from taso_mirage.torch.precision import PrecisionPart
    from taso_mirage.torch.sessions import Sessions

    model = ir.from_proto(code(place.canary))
    sessions = Sessions(model, torch.device("cpu"), {})
    sessions._open_exported([PrecisionPart(model, False)])
    assert not place.ran()


def test_what_the_user_trusts_and_what_is_made_here_may_run(place: Place) -> None:
    """Trust goes with the model's value, through all that reads it again."""
    assert not load(place.model).trusted
    assert not load_as_data(place.model).trusted
    trusted = load(place.model, trust_kernels=True)
    assert trusted.trusted
    assert isinstance(runtime.runnable(trusted), Trusted)
    assert not isinstance(runtime.runnable(trusted.without_library()), Trusted)
    assert embed(load(place.model), []).trusted
    with pytest.raises(Unsupported, match="not trusted"):
        embed(load_as_data(place.model), [])
    with pytest.raises(TasoMirageError):
        runtime.open_in_child(trusted)
    assert PLANTED in place.compiled()
    assert PLANTED not in str(serialize(load(place.model)))


# ---------------------------------------------------------------- the code itself

ONLY = {
    "InferenceSession": {"targets/onnx_runtime.py"},
    "register_custom_ops_library": {"runtime/register.py"},
    "register": {"targets/onnx_runtime.py"},
    "build_kernels": {"runtime/register.py"},
    "compile_kernels": {"runtime/register.py"},
    "compile_files": {"runtime/compilation.py", "emit/cpu/native_kernel.py"},
    "exec_module": {"operators/ops.py", "operators/additions.py", "emit/compile.py"},
    "eval": {"torch/export.py"},
    "exec": set(),
    "pickle.loads": {"measure/child.py", "measure/cluster.py", "measure/messages.py", "report/sent.py"},
    "Trusted": {"measure/session.py", "targets/packaging.py", "torch/sessions.py"},
    "CDLL": {"emit/cpu/native_kernel.py", "system/memory.py", "devices/cuda/device.py"},
}
"""The callers that may open a model, register the library, compile, load code, or give trust."""
BARE = {"register", "eval", "exec"}
"""Names that methods of others have too."""


@pytest.mark.lint("taso_mirage", "bench")
def test_each_way_to_code_has_one_place() -> None:
    found: dict[str, set[str]] = {name: set() for name in ONLY}
    trusting = set()
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in nodes(file):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            for name in ONLY:
                if called == name or (name not in BARE and called.endswith(f".{name}")):
                    found[name].add(str(file.relative_to(PACKAGE)))
            trusting |= {str(file.relative_to(PACKAGE)) for each in node.keywords if each.arg == "trusted"}
    assert found == ONLY
    for file in sorted((ROOT / "bench").glob("*.py")):
        calls = [ast.unparse(n.func) for n in nodes(file) if isinstance(n, ast.Call)]
        assert not {"register", "taso_mirage.register"} & set(calls), file
        assert "Trusted" not in calls or file.name in ("real.py", "quantized.py"), file  # for our own files
    assert trusting == {"onnx_io/read.py", "runtime/embed.py", "ir/model.py"}
