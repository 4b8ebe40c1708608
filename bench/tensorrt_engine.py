"""An optimized model's kernels inside a real TensorRT engine, next to TensorRT without them.

    python bench/tensorrt_engine.py NAME=OPTIMIZED.onnx,ORIGINAL.onnx ... --libraries DIR --include
    DIR [--append]

OPTIMIZED is the result of `taso-mirage optimize ORIGINAL.onnx --target cuda --portable --kernels
search`. For each model the plugin is exported and built as its README says, and
bench/tensorrt_engine.cpp builds engines of `model.onnx` (kernels as plugins), `reference.onnx` (the
same graph without them) and the original; each is serialised, read back, captured as a CUDA graph,
and timed in turns. The outputs of all are checked by the export's own check_samples.py. Writes
bench/results/tensorrt_engine-DEVICE.json (microseconds).

DIR of --libraries has libnvinfer.so.8 and libnvonnxparser.so.8 of the wheel tensorrt==8.6.0, that
of --include the public headers with NvOnnxParser.h. cuBLAS 12 and cuDNN 8, which the wheel's parser
names, are not needed: TensorRT's own kernels are used, on all sides.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import end_to_end_common as common
from end_to_end_common import ROOT

from taso_mirage.measure import session as runtime
from taso_mirage.measure.target import CUDA
from taso_mirage.runtime.tensorrt.plugin_export import Exported, export

SOURCE = Path(__file__).with_suffix(".cpp")
LIBRARIES = ("libnvinfer.so.8", "libnvonnxparser.so.8")
STAND_INS = ("cudnn.so.8", "cublas.so.12", "cublasLt.so.12")
PLUGIN, REFERENCE, ORIGINAL = "plugin", "reference", "original"


def run(*command: str | Path, **options: Any) -> str:
    """The output of a command. Raises RuntimeError with all of it where it fails."""
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ends with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def stand_ins(folder: Path) -> None:
    """Empty libraries of the names, and with the symbol versions, that TensorRT 8.6's own libraries
    ask for and do not call here."""
    (folder / "empty.c").write_text("")
    for name in STAND_INS:
        script = folder / f"{name}.map"
        script.write_text(f"lib{name} {{ global: *; }};\n")
        options = ("-shared", "-fPIC", f"-Wl,-soname,lib{name}", f"-Wl,--version-script={script}")
        run("gcc", folder / "empty.c", *options, "-o", folder / f"lib{name}")


def program(folder: Path, libraries: Path, include: Path, cuda: Path) -> Path:
    """The program that builds and times engines."""
    linked = (
        *(libraries / name for name in LIBRARIES),
        f"-L{cuda / 'lib64'}",
        "-lcudart_static",
    )
    options = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-isystem", include, "-isystem", cuda / "include")
    lazy = ("-Wl,--unresolved-symbols=ignore-in-shared-libs", "-Wl,-z,lazy", "-ldl", "-lpthread", "-lrt")
    run("g++", *options, SOURCE, *linked, *lazy, "-o", folder / "engine")
    return folder / "engine"


def built(name: str, made: Exported, folder: Path, options: argparse.Namespace) -> Path:
    """The plugin library, made as the export's README says."""
    build = folder / f"{name}-build"
    headers = (f"-DTENSORRT_INCLUDE_DIR={options.include}", f"-DCUDA_INCLUDE_DIR={options.cuda / 'include'}")
    run("cmake", "-S", made.folder, "-B", build, *headers)
    run("cmake", "--build", build, "-j", "4")
    return build / "libtaso_mirage_plugin.so"


def measured(library: Path, made: Exported, models: Mapping[str, Path], out: Path, libraries: Path) -> dict[str, Any]:
    """The program's measurements of the engines of some models, by their keys: those that could be
    built."""
    index = json.loads((made.folder / "samples" / "samples.json").read_text())["inputs"]
    inputs = ",".join(f"{key}:{made.folder / 'samples' / each['raw']}" for key, each in index.items())
    env = os.environ | {"LD_LIBRARY_PATH": f"{libraries}:{out.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    command = [out.parent / "engine", library, out, inputs, *(f"{key}:{path}" for key, path in models.items())]
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, env=env)
    print(done.stdout + done.stderr, file=sys.stderr)
    if not done.stdout.strip().endswith("}"):
        raise RuntimeError(f"{made.folder.name}: the engines end with {done.returncode}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def row(name: str, optimized: Path, original: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """A model's engines: their figures, and whether each agrees with ONNX Runtime."""
    made = export(optimized, folder / name, {})
    models = {PLUGIN: made.folder / "model.onnx", REFERENCE: made.folder / "reference.onnx", ORIGINAL: original}
    out = folder / f"{name}-out"
    figures = measured(built(name, made, folder, options), made, models, out, options.libraries)
    for key in [each for each in models if each in figures]:
        checker = [sys.executable, str(made.folder / "check_samples.py"), f"{out}-{key}.json"]
        said = subprocess.run(checker, capture_output=True, text=True)
        figures[key] |= {"checked": said.returncode == 0, "outputs": len(said.stdout.splitlines())}
        print(key, said.stdout, said.stderr, file=sys.stderr)
    ratios = {
        f"over_{key}": round(figures[key]["us"] / figures[PLUGIN]["us"], 3)
        for key in (REFERENCE, ORIGINAL)
        if key in figures and PLUGIN in figures
    }
    launches = {key: len(kernel.launches) for key, kernel in made.kernels.items()}
    return {"model": name} | figures | ratios | {"plugins": launches, "operators": len(made.refused)}


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=OPTIMIZED.onnx,ORIGINAL.onnx")
    parser.add_argument("--libraries", type=Path, required=True, metavar="DIR", help="TensorRT's libraries")
    parser.add_argument("--include", type=Path, required=True, metavar="DIR", help="TensorRT's public headers")
    parser.add_argument("--cuda", type=Path, default=Path("/usr/local/cuda"), metavar="DIR", help="a CUDA toolkit")
    parser.add_argument("--append", action="store_true", help="keep the rows that the file has")
    options = parser.parse_args(given)
    options.models = [
        (name, *files.partition(",")[::2]) for name, _, files in (m.partition("=") for m in options.models)
    ]
    needed = [Path(file) for _, *files in options.models for file in files]
    needed += [options.include / name for name in ("NvInfer.h", "NvOnnxParser.h")]
    needed += [options.libraries / name for name in LIBRARIES] + [options.cuda / "include" / "cuda_runtime_api.h"]
    missing = [str(file) for file in needed if not file.is_file()]
    if missing:
        parser.error(
            f"there is no file {missing[0]!r}; a model is NAME=OPTIMIZED.onnx,ORIGINAL.onnx, see --help for the folders"
        )
    return options


def main(given: list[str] | None = None) -> None:
    """Run the command line."""
    options = parsed(given)
    device = runtime.device(CUDA)
    path = ROOT / "bench" / "results" / f"tensorrt_engine-{device.split()[1]}.json"
    setting = common.setting("tensorrt_engine", device, ("triton",))
    rows = common.kept(path, setting, "model") if options.append else {}
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        stand_ins(folder)
        program(folder, options.libraries, options.include, options.cuda)
        for name, optimized, original in options.models:
            rows[name] = row(name, Path(optimized), Path(original), folder, options)
            path.write_text(json.dumps(setting | {"rows": list(rows.values())}, indent=2) + "\n")
            print(json.dumps(rows[name]))


if __name__ == "__main__":
    main()
