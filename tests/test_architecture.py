"""Imports go one way, heavy packages stay in their one file, and `--help` answers at once."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "taso_mirage"
FOLDERS = {folder.name for folder in (PACKAGE / "targets").iterdir() if folder.is_dir()}
LAYERS = [
    {"errors"},
    {"checker", "dims", "store", "terminal", "toml", "workers"},
    {"builds", "console", "targets.device"},
    {"ir"},
    {"mugraph"},
    {"traits"},
    {"meanings"},
    {"ops"},
    {"copies", "exactness"},
    {"expressions", "folding"},
    {"outline", "sides"},
    {"equation", "model"},
    {"rules", "text"},
    {"derived", "library"},
    {"onnx_io", "verify", "drawing"},
    {"explain"},
    {"partial"},
    {"codegen"},
    {"runtime"},
    {"targets"},
    {"generate", "optimize", "kernels"},
    {"targets.lowering"},
    {"fuse", "plugin"},
    {"pipeline"},
    {"api"},
    {"cli_options"},
    {"cli_kernels", "cli_partial", "cli_plugin", "cli_substitutions", "cli_verify"},
    {"cli"},
]
HEAVY = {
    "onnx": {
        "onnx_io/files.py",
        "onnx_io/protos.py",
        "optimize/inspection.py",
        "plugin/model.py",
        "verify/admitted.py",
    },
    "onnx_ir": {f"onnx_io/{name}.py" for name in "read write files build copies protos inference kernels walk".split()}
    | {"optimize/inspection.py", "runtime/embed.py", "runtime/functions.py"},
    "onnx_shape_inference": {"onnx_io/inference.py"},
    "onnxruntime": {"targets/onnx_runtime.py", "targets/cuda/session.py", "verify/admitted.py"},
    "openvino": {"targets/openvino/session.py"},
    "z3": {"meanings/integers.py", "verify/arbiter.py", "checker/equations.py"},
    "triton": {"codegen/compile.py", "codegen/tune.py"},
    "sqlite3": {"store.py"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(file: Path, top_level: bool = False) -> set[str]:
    tree = ast.parse(file.read_text())
    nodes = tree.body if top_level else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


DESCRIPTIONS = {"device", "machine", "options", "stamp", "compiler"}
"""Modules of `targets/` that say what one is; its sessions are above the runtime, its kernels above their search."""


def room(parts: Sequence[str]) -> str:
    """What `LAYERS` names: a module's folder under taso_mirage, but for the folders of targets."""
    if parts[0] != "targets" or parts[-1] == "lowering":
        return "targets.lowering" if parts[0] == "targets" else parts[0]
    return "targets.device" if len(parts) == 1 or parts[-1] in DESCRIPTIONS | FOLDERS else "targets"


def layer(name: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if name in names)


def test_imports_go_one_way() -> None:
    wrong = []
    for file in modules():
        where = [part.removesuffix(".py") for part in file.relative_to(PACKAGE).parts]
        if where[-1] == "__init__":
            where.pop()
        if not where:
            continue
        own = room(where)
        for name in imports(file, top_level=True):
            package, *parts = name.split(".")
            if package == "taso_mirage" and parts and room(parts) != own and layer(room(parts)) >= layer(own):
                wrong.append(f"{file.relative_to(PACKAGE)} imports {name}")
    assert wrong == []


def test_heavy_packages_are_imported_in_named_files() -> None:
    wrong = []
    for file in modules():
        where = str(file.relative_to(PACKAGE))
        for name in imports(file):
            top = name.split(".")[0]
            if top in HEAVY and where not in HEAVY[top]:
                wrong.append(f"{where} imports {name}")
    assert wrong == []


def test_generate_optimize_and_codegen_never_import_each_other() -> None:
    rooms = {"generate", "optimize", "codegen"}
    for file in modules():
        own = file.relative_to(PACKAGE).parts[0]
        if own in rooms:
            assert not {n.split(".")[1] for n in imports(file) if n.startswith("taso_mirage.")} & (rooms - {own})


def test_files_are_small() -> None:
    long = {str(f.relative_to(PACKAGE)): len(f.read_text().splitlines()) for f in modules()}
    assert {name: n for name, n in long.items() if n > 450} == {}


def test_help_imports_nothing_heavy_and_is_quick() -> None:
    code = "import sys, taso_mirage.cli; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"numpy", "onnx", "onnx_ir", "onnxruntime", "sqlite3", "ml_dtypes"}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "taso_mirage.cli", "--help"], capture_output=True, check=True)
    assert time.perf_counter() - start < 5  # the bar is 0.3 s (bench/startup.py); this only catches a disaster


def test_what_users_call_is_at_the_top() -> None:
    import taso_mirage

    assert all(callable(getattr(taso_mirage, name)) for name in taso_mirage.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'optimise'"):
        _ = taso_mirage.optimise


def test_the_checker_shares_no_code_with_the_prover() -> None:
    for file in (PACKAGE / "checker").glob("*.py"):
        ours = {name for name in imports(file) if name.startswith("taso_mirage")}
        assert ours <= {"taso_mirage.errors"} | {f"taso_mirage.checker.{f.stem}" for f in file.parent.glob("*.py")}


def test_modules_import_each_other_in_no_circle() -> None:
    """Of the meanings and the code generators, and lazy imports count."""
    names = {".".join(("taso_mirage", *f.relative_to(PACKAGE).with_suffix("").parts)): f for f in modules()}
    known = {name.removesuffix(".__init__"): f for name, f in names.items()}
    known = {name: f for name, f in known.items() if name.split(".")[1:2] in (["meanings"], ["codegen"])}
    after = {name: imported(f) & known.keys() for name, f in known.items()}
    for name in known:  # what is reached through it
        for other in known:
            if name in after[other]:
                after[other] |= after[name]
    assert [name for name in known if name in after[name]] == []


def imported(file: Path) -> set[str]:
    """The modules that a file imports anywhere: a package, and what of it is a module."""
    found = imports(file)
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_code_generators_name_no_operator() -> None:
    """What they know of one is a trait of it; leaves of a graph, and `item`, are no operators."""
    leaves = {"input", "weight", "constant", "extents", "absent", "opaque", "item"}
    wrong = []
    for file in (PACKAGE / "codegen").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Compare) and any(
                isinstance(x, ast.Attribute) and x.attr == "op" for x in ast.walk(node)
            ):
                texts = {x.value for x in ast.walk(node) if isinstance(x, ast.Constant) and isinstance(x.value, str)}
                tables = {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and x.id.isupper()} - {"ABSENT"}
                wrong += [f"{file.name}:{node.lineno}: {each}" for each in (texts | tables) - leaves]
    assert wrong == []
