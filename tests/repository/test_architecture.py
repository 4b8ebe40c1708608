"""Imports go down from room to room and never in circles, every public name means one thing,
documents name files that exist."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from sources import PACKAGE, ROOT, imported, imports, modules, nodes, parsed

from taso_mirage.prove.rules.proofs import prover_files

pytestmark = pytest.mark.lint
LAYERS: list[set[str]] = [  # a room may import those of the rows above its own; its `__init__.py` states its purpose
    {"errors", "verdicts", "version"},
    {"plugins"},
    {"checker", "system", "devices"},
    {"ir"},
    {"meanings"},
    {"operators"},
    {"rewriting"},
    {"onnx_io", "prove"},
    {"prove.rules"},
    {"emit", "search.partial"},
    {"certificates", "mugraph"},
    {"forms"},
    {"regions", "runtime"},
    {"targets"},
    {"measure"},
    {"generate", "search"},
    {"lowering"},
    {"report"},
    {"pipeline.fuse", "runtime.tensorrt"},
    {"pipeline"},
    {"option_types"},
    {"optimize_options"},
    {"api"},
    {"folder_report"},
    {"folder"},
    {"torch"},
    {"dispatch"},
    {"cli"},
]
BY_NAME = {
    ("emit", "forms"): "forms are found by their files, and import the code generators",
    ("targets", "lowering"): "a target names the module that makes its kernels",
}
"""Rooms whose modules a room below them imports by name, and why."""
LOOSE = {
    "errors",
    "verdicts",
    "version",
    "plugins",
    "option_types",
    "optimize_options",
    "folder_report",
    "api",
    "folder",
    "dispatch",
}
"""Modules at the top."""
HEAVY = {
    "jinja2": {"report/pages.py"},
    "onnx": {
        "onnx_io/files.py",
        "onnx_io/groups.py",
        "onnx_io/protos.py",
        "onnx_io/stacked.py",
        "onnx_io/written.py",
        "prove/rules/onnx_types.py",
        "report/inspection.py",
        "runtime/tensorrt/plugin_model.py",
    },
    "onnx_ir": {
        "onnx_io/attributes.py",
        "onnx_io/bodies.py",
        "onnx_io/loops.py",
        "onnx_io/branches.py",
        "onnx_io/build.py",
        "onnx_io/in_double.py",
        "onnx_io/input_requirements.py",
        "onnx_io/constants.py",
        "onnx_io/content.py",
        "onnx_io/declarations.py",
        "onnx_io/declared.py",
        "onnx_io/external.py",
        "onnx_io/files.py",
        "onnx_io/inference.py",
        "onnx_io/inlining.py",
        "onnx_io/kernels.py",
        "onnx_io/content_terms.py",
        "onnx_io/originals.py",
        "onnx_io/places.py",
        "onnx_io/protos.py",
        "onnx_io/read.py",
        "onnx_io/states.py",
        "onnx_io/value_types.py",
        "onnx_io/walk.py",
        "onnx_io/serialization.py",
        "onnx_io/streaming.py",
        "onnx_io/write.py",
        "report/inspection.py",
        "runtime/embed.py",
        "runtime/kernel_functions.py",
        "torch/calls.py",
        "torch/precision.py",
    },
    "onnx_shape_inference": {"onnx_io/inference.py"},
    "onnxruntime": {
        "targets/cuda/libraries.py",
        "targets/cuda/session.py",
        "targets/onnx_runtime.py",
        "prove/rules/onnx_types.py",
    },
    "openvino": {"targets/openvino/session.py"},
    "torch": {
        "emit/replays.py",
        "lowering/exact.py",
        "emit/compile_jobs.py",
        "emit/tune.py",
        "torch/backend.py",
        "torch/calls.py",
        "torch/cuda_graphs.py",
        "torch/inductor.py",
        "torch/random_ops.py",
        "torch/comparison.py",
        "torch/export.py",
        "torch/decompositions.py",
        "torch/ways.py",
        "torch/functionalization.py",
        "torch/meaning.py",
        "torch/modules.py",
        "torch/norms.py",
        "torch/precision.py",
        "torch/sessions.py",
        "torch/program.py",
    },
    "z3": {"checker/solver.py", "meanings/integers.py", "prove/arbiter.py"},
    "triton": {"emit/compile.py", "emit/compile_jobs.py", "emit/tune.py"},
    "sqlite3": {"system/store.py"},
}
SHARED_NAMES = {
    "optimize": "the dispatch hands models of ONNX to that of `api`",
    "main": "the entry of a process that is started as `python -m`",
    "here": "what a back end gives of this machine: one protocol, one module for each target",
    "fastest": "the choice of a back end among muGraphs: one protocol, one module for each target",
}
"""Public names that several modules may have, and why."""


def room(module: str) -> str:
    """The name of a module's room in `LAYERS`."""
    parts = module.split(".")[1:]
    inner = ".".join(parts[:2])
    return inner if any(inner in names for names in LAYERS) else parts[0]


def layer(name: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if name in names)


def circles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """Sets of names that reach each other: the strongly connected components with more than one
    member (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in arrows.get(name, ()):
            if other not in order:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == order[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for name in arrows:
        if name not in order:
            visit(name)
    return found


def test_imports_go_down() -> None:
    wrong = []
    for name, file in modules().items():
        if name == "taso_mirage":  # the package itself, which re-exports the functions for users
            continue
        for other in sorted(imports(file)):
            inside = other.startswith("taso_mirage.") and room(other) != room(name)
            if inside and layer(room(other)) >= layer(room(name)):
                wrong.append(f"{name} imports {other}")
    assert wrong == []


def named_modules(file: Path) -> Iterator[str]:
    """The modules of the package that the texts of a module name, as `import_module` takes them."""
    for node in nodes(file):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition(":")[0]
            if name in modules() and name != "taso_mirage":
                yield name


def test_modules_above_are_named_in_declared_places() -> None:
    apart = {"taso_mirage", "taso_mirage.plugins"}  # the face, and the names of groups of entry points
    named = {
        (room(name), room(other))
        for name, file in modules().items()
        if name not in apart
        for other in named_modules(file)
        if room(other) != room(name) and layer(room(other)) >= layer(room(name))
    }
    assert named == BY_NAME.keys()


def test_no_module_imports_itself_in_a_circle() -> None:
    arrows = {name: {m for m in imports(file) if m in modules() and m != name} for name, file in modules().items()}
    assert circles(arrows) == []


def test_the_page_of_rooms_shows_these_layers() -> None:
    _, drawn, *_ = re.split(r"^```(?:text)?\n", (ROOT / "docs/design/rooms.md").read_text(), flags=re.MULTILINE)
    rows = [re.split(r"  +", line.strip()) for line in drawn.splitlines()]
    assert [{name.replace("/", ".") for name in row} for row in rows] == LAYERS[::-1]


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


def test_every_room_says_in_one_sentence_what_it_is_for() -> None:
    nested = {name for names in LAYERS for name in names if "." in name}
    rooms = [file.parent for file in PACKAGE.glob("*/__init__.py")]
    assert {r.name for r in rooms} | LOOSE == {name for names in LAYERS for name in names if "." not in name}
    rooms += [PACKAGE / name.replace(".", "/") for name in nested]
    silent = [r.name for r in rooms if not (ast.get_docstring(parsed(r / "__init__.py")) or "").endswith(".")]
    assert silent == []
    assert {f.stem for f in PACKAGE.glob("*.py")} == LOOSE | {"__init__"}


def defined(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Public names that a module defines at its top, and whether they are classes or aliases of
    types."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names = [(node.name, isinstance(node, ast.ClassDef))]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            names = [(name, name[0].isupper() and not name.isupper()) for name in found]
        else:
            continue
        yield from ((name, is_type) for name, is_type in names if not name.startswith("_"))


def used_elsewhere() -> set[tuple[str, str]]:
    """(module, name) of all that one module takes from another, also as an attribute of an imported
    module."""
    used = set()
    for own, file in modules().items():
        aliases: dict[str, str] = {}
        for node in nodes(file):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if f"{node.module}.{alias.name}" in modules():
                        aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        used |= {(module, name) for module, name in imported(file) if module != own}
        for node in nodes(file):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
                used.add((aliases[node.value.id], node.attr))
    return used


def test_a_public_name_means_one_thing() -> None:
    """Classes, aliases of types, and names that other modules use.

    The checker shares nothing with the rest, its names neither; a name that every target has in a
    module of the same name (`options`, `device`) is one thing for each.
    """
    used = used_elsewhere()
    homes: dict[str, set[str]] = defaultdict(set)
    for module, file in modules().items():
        for name, is_type in defined(parsed(file)):
            if (is_type or (module, name) in used) and not module.startswith("taso_mirage.checker"):
                homes[name].add(re.sub(r"(?<=targets\.|devices\.)\w+(?=\.)", "*", module))
    several = {name: sorted(where) for name, where in homes.items() if len(where) > 1 and name not in SHARED_NAMES}
    assert several == {}


DOCUMENTS = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "bench/README.md", "substitutions/README.md", "models/README.md")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NOT_HERE = {
    *("hard.py", "op_specs/NAME.py", "my_operators/hardmax.py", "plugin_in_python.py", "rms_linear.py", "ship.py"),
    "taso_mirage.cpp",
}
"""Files that commands write or that a user may, placeholders, and a key of metadata that looks like
a file."""


def headings(document: Path) -> set[str]:
    """The anchors of a page, with those of the pages that it includes."""
    text = document.read_text()
    texts = [text, *((document.parent / name).read_text() for name in re.findall(r"(?m)^```{include} (\S+)$", text))]
    lines = [line for each in texts for line in re.findall(r"(?m)^#+ +(.*)$", each)]
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = document.parent / path if path else document
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in headings(target)):
            broken.append(link)
    assert broken == []


@cache
def names_of_files() -> frozenset[str]:
    folders = ("taso_mirage", "op_specs", "bench", "models", "tests", "docs", "substitutions")
    return frozenset(f.name for folder in folders for f in (ROOT / folder).rglob("*.*"))


def there(mention: str, document: Path) -> bool:
    """Whether a file that a document mentions exists: from the root, a folder of the package, the
    document's folder, or by its name alone."""
    if mention in NOT_HERE:
        return True
    if "/" not in mention:
        return mention in names_of_files()
    return any(any(place.glob(mention)) for place in (ROOT, document.parent)) or any(PACKAGE.rglob(mention))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_files_that_documents_mention_exist(document: Path) -> None:
    mentions = re.findall(r"(?<![\w/.*<-])((?:[\w.*-]+/)*[\w-]+\.(?:py|cpp|h))\b(?![\w(])", document.read_text())
    assert sorted({m for m in mentions if not there(m, document)}) == []


def test_heavy_packages_are_imported_in_named_files() -> None:
    wrong = []
    for file in modules().values():
        where = str(file.relative_to(PACKAGE))
        for name in imports(file):
            top = name.split(".")[0]
            if top in HEAVY and where not in HEAVY[top]:
                wrong.append(f"{where} imports {name}")
    assert wrong == []
    assert [where for files in HEAVY.values() for where in sorted(files) if not (PACKAGE / where).exists()] == []


def test_generate_search_and_codegen_never_import_each_other() -> None:
    rooms = {"generate", "search", "emit"}
    for name, file in modules().items():
        if name != "taso_mirage" and room(name) in rooms:
            assert not {room(n) for n in imports(file) if n.startswith("taso_mirage.")} & (rooms - {room(name)})


def test_every_test_file_has_a_name_of_its_own() -> None:
    """pytest imports test files by their names alone."""
    names = [file.name for file in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_modules_of_benchmarks_have_other_names_than_those_of_tests() -> None:
    """Tests of benchmarks have the folders of both on the path, in any order."""
    bench, harness = ({file.stem for file in (ROOT / name).glob("*.py")} for name in ("bench", "tests/harness"))
    assert bench & harness == set()


def test_files_are_small() -> None:
    long = {str(f.relative_to(PACKAGE)): len(f.read_text().splitlines()) for f in modules().values()}
    assert {name: n for name, n in long.items() if n > 450} == {}


def test_help_imports_nothing_heavy_and_is_quick() -> None:
    code = "import sys, taso_mirage.cli; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"numpy", "onnx", "onnx_ir", "onnxruntime", "sqlite3", "ml_dtypes", "jinja2", "torch"}
    start = os.times()
    subprocess.run([sys.executable, "-m", "taso_mirage.cli", "--help"], capture_output=True, check=True)
    # of the processor, as others may work; the bar is 0.3 s (bench/startup.py)
    assert os.times().children_user - start.children_user < 2


def test_what_users_call_is_at_the_top() -> None:
    import taso_mirage

    assert not set(taso_mirage.__all__) & {file.parent.name for file in PACKAGE.glob("*/__init__.py")}
    assert all(callable(getattr(taso_mirage, name)) for name in taso_mirage.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'optimise'"):
        _ = taso_mirage.optimise


def test_the_checker_shares_no_code_with_the_prover() -> None:
    for file in (PACKAGE / "checker").glob("*.py"):
        ours = {name for name in imports(file) if name.startswith("taso_mirage")}
        assert ours <= {"taso_mirage.errors"} | {f"taso_mirage.checker.{f.stem}" for f in file.parent.glob("*.py")}


def test_code_generators_name_no_operator() -> None:
    """Code generators read traits of an operator; leaves of a graph, and `item`, are no
    operators."""
    leaves = {"input", "weight", "constant", "extents", "absent", "opaque", "item"}
    wrong = []
    for file in (PACKAGE / "emit").rglob("*.py"):
        for node in nodes(file):
            if isinstance(node, ast.Compare) and any(
                isinstance(x, ast.Attribute) and x.attr == "op" for x in ast.walk(node)
            ):
                texts = {x.value for x in ast.walk(node) if isinstance(x, ast.Constant) and isinstance(x.value, str)}
                tables = {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and x.id.isupper()} - {"ABSENT"}
                wrong += [f"{file.name}:{node.lineno}: {each}" for each in (texts | tables) - leaves]
    assert wrong == []


def test_the_digest_of_the_prover_has_all_that_a_proof_imports() -> None:
    """Kept verdicts are those of this prover: a change of any module that it imports makes them
    anew."""
    apart = {"errors", "version", "system", "plugins"}  # they decide nothing
    reached, waiting = set[str](), ["taso_mirage.prove.rules.proofs"]
    while waiting:
        name = waiting.pop()
        if name in modules() and name not in reached and name != "taso_mirage":
            reached.add(name)
            waiting += imports(modules()[name])
    hashed = set(prover_files())
    assert [m for m in sorted(reached) if room(m) not in apart and modules()[m] not in hashed] == []


def docstring_lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines of docstrings and of comments that have a line of their own."""
    lines = file.read_text().splitlines()
    for node in nodes(file):
        bodies = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
        for statement in (s for body in bodies if isinstance(body, list) for s in body):
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield from ((i, lines[i - 1]) for i in range(statement.lineno, (statement.end_lineno or 0) + 1))
    yield from ((i, line) for i, line in enumerate(lines, 1) if line.lstrip().startswith("# "))


def test_lines_of_prose_are_short() -> None:
    """At most 100 characters, but for commands, links and tables."""
    long = [
        f"{file.relative_to(ROOT)}:{i}"
        for folder in ("taso_mirage", "op_specs", "tests", "bench", "models")
        for file in sorted((ROOT / folder).rglob("*.py"))
        for i, line in docstring_lines(file)
        if len(line) > 100 and max(map(len, line.split())) < 60 and not line.startswith("    " * 4)
    ]
    for file in (*sorted((ROOT / "docs").rglob("*.md")), *ROOT.glob("*.md")):
        code = False
        for i, line in enumerate(file.read_text().splitlines(), 1):
            code ^= line.lstrip().startswith("```")
            if not code and not line.startswith("|") and len(line) > 100 and max(map(len, line.split())) < 60:
                long.append(f"{file.relative_to(ROOT)}:{i}")
    assert long == []
