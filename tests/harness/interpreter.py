"""Programs in Triton's interpreter, which is chosen before Triton is imported: in a process of
their own each. A process that has imported all that they need is forked for each of them; to import
it takes most of their time otherwise."""

from __future__ import annotations

import atexit
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

Done = subprocess.CompletedProcess[str]


def run(code: str, *args: object, cwd: Path | None = None) -> Done:
    """`python -c CODE ARGS` in a folder whose modules it sees, in Triton's interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        request = {"code": code, "args": list(map(str, args)), "cwd": str(cwd or Path.cwd()), "folder": folder}
        process = _server()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, f"the process that is forked ended with {process.wait()}"
        out, err = ((Path(folder) / name).read_text() for name in ("out", "err"))
    return Done(["-c", *request["args"]], int(answer), out, err)


@cache
def _server() -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    made = subprocess.Popen(
        [sys.executable, __file__],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_end, made)
    return made


def _end(process: subprocess.Popen[str]) -> None:
    with process:  # waits for it, and closes its pipes
        process.kill()


def _serve() -> None:
    """Fork for each request, and say how it ended; the fork runs it."""
    import in_turn  # noqa: F401
    import torch  # noqa: F401
    import triton.experimental.gluon
    import triton.language  # noqa: F401
    from triton.runtime import interpreter as triton_interpreter

    from taso_mirage.emit.gpu.program import PRECISIONS
    from taso_mirage.lowering import cuda as lowering  # noqa: F401
    from taso_mirage.meanings import reals  # noqa: F401
    from taso_mirage.mugraph import checkpoint  # noqa: F401

    # It multiplies exactly at any precision, and does not know all that the compiler knows.
    options = triton_interpreter.interpreter_builder.options
    allowed = *options.allowed_dot_input_precisions, *PRECISIONS
    object.__setattr__(options, "allowed_dot_input_precisions", allowed)
    _hasten(triton_interpreter)
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        forked = os.fork()
        if not forked:
            ended = _run(**request)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ended)  # to take apart all that was imported takes as long as to import it
        _, status = os.waitpid(forked, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _hasten(of_triton: ModuleType) -> None:
    """Remove the checks that take half of the interpreter's time: no index or sum of a few numbers
    overflows, and the names that a function of a program reads were replaced when the program
    began."""
    object.__setattr__(of_triton.interpreter_builder.options, "sanitize_overflow", False)
    seen: set[str] = set()
    whole, dtype_of = of_triton.GridExecutor.__call__, cache(of_triton._get_np_dtype)
    lang = of_triton.tl

    def grid(self: Any, *args: Any, **options: Any) -> Any:
        seen.clear()
        return whole(self, *args, **options)

    def called(self: Any, *args: Any, **options: Any) -> Any:
        if self.fn.__module__ not in seen:
            of_triton._patch_lang(self.fn)
            seen.add(self.fn.__module__)
        try:
            return self.rewrite()(*args, **options)
        except Exception as error:
            raise of_triton.InterpreterError(repr(error)) from error

    def numpys(dtype: Any) -> Any:
        scalar = dtype.element_ty if isinstance(dtype, lang.block_type) else dtype
        return dtype_of(lang.uint64 if isinstance(scalar, lang.pointer_type) else scalar)

    of_triton.GridExecutor.__call__ = grid
    of_triton.InterpretedFunction.__call__ = called
    of_triton._get_np_dtype = numpys
    _share_shapes(lang.core)


def _share_shapes(core: ModuleType) -> None:
    """Make each shape once: every value and every type of a block has one, and to make them anew
    takes half of the remaining time. Nothing changes a shape."""
    make_type, semantic = core._type_for_tuple_values, sys.modules["triton.language.semantic"].TritonSemantic
    broadcast = semantic.broadcast_impl_value

    @cache
    def of_value(sizes: tuple[int, ...]) -> tuple[Any, Any]:
        return core.tuple([core.constexpr(size) for size in sizes]), core.constexpr(math.prod(sizes))

    @cache
    def of_block(sizes: tuple[int, ...]) -> tuple[Any, int, str]:
        if not sizes:
            raise TypeError("0d block_type is forbidden")
        shape = core.tuple(sizes)
        return shape, core.validate_block_shape(shape), str(shape)

    @cache
    def of_integers(values: tuple[int, ...]) -> Any:
        return make_type(values)

    def value(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = of_value(tuple(type.shape.values) if type.is_block() else ())

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        self.element_ty = element_ty
        self.shape, self.numel, text = of_block(tuple([getattr(size, "value", size) for size in shape]))
        self.name = f"<{text}, {element_ty}>"

    def values_type(values: Any, fields: Any = None) -> Any:
        if fields is None and all(type(value) is int for value in values):
            return of_integers(tuple(values))
        return make_type(values, fields)

    def broadcasted(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        return (lhs, rhs) if lhs.shape is rhs.shape else broadcast(self, lhs, rhs)

    core.tensor.__init__, core.block_type.__init__ = value, block
    core._type_for_tuple_values, semantic.broadcast_impl_value = values_type, broadcasted


def _run(code: str, args: Sequence[str], cwd: str, folder: str) -> int:
    for number, name in enumerate(("out", "err"), 1):
        with open(os.path.join(folder, name), "w") as file:
            os.dup2(file.fileno(), number)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.chdir(cwd)
    sys.argv, sys.path[0] = ["-c", *args], cwd
    namespace: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(code, "<string>", "exec"), namespace)
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _serve()
