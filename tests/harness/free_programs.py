"""Programs at several sizes in the interpreter of Triton."""

from __future__ import annotations

import json
from pathlib import Path

import interpreter

INTERPRETER = """
import json, sys
from pathlib import Path
import numpy as np, torch
from taso_mirage.mugraph.checkpoint import from_json
from taso_mirage.emit.compile import load_source
from taso_mirage.meanings.reals import EXACT
from taso_mirage.operators.interpret import interpret
from triton.runtime import interpreter

patch = interpreter._patch_lang_tensor


def patched(tensor, scope):  # numpy from 2.4 on makes no number of an array of one element
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


interpreter._patch_lang_tensor = patched
"""
RUN = (
    INTERPRETER
    + """
torch.set_deterministic_debug_mode("error")  # new tensors are full of NaN: memory may hold what is right
folder = Path(sys.argv[1])
for name, sources, goals in json.loads((folder / "given.json").read_text()):
    modules = [load_source(source, folder, f"{name}{i}") for i, source in enumerate(sources)]
    for goal in map(from_json, goals):
        rng = np.random.default_rng(0)
        arrays = [3 * rng.standard_normal([int(n) for n in x.shape]) for x in goal.inputs]
        given = [torch.tensor(a, dtype=getattr(torch, x.dtype)) for a, x in zip(arrays, goal.inputs, strict=True)]
        env = {x: EXACT.load(a.double().numpy()) for x, a in zip(goal.inputs, given, strict=True)}
        values = interpret(goal.outputs, EXACT, env)
        for i, module in enumerate(modules):
            results = module.launch(*given)
            results, errors = results if isinstance(results, tuple) else (results,), []
            for output, result in zip(goal.outputs, results, strict=True):
                got, wanted = result.double().numpy(), np.asarray(values[output])
                same = got.shape == wanted.shape and not np.isnan(got).any()
                errors.append(np.abs(got - wanted).max() / np.abs(wanted).max() if same else np.inf)
            print(name, i, [list(x.shape) for x in goal.inputs][0], max(errors))
"""
)


def interpret(given: object, folder: Path) -> list[list[str]]:
    """The words that a process prints which runs programs in Triton's interpreter."""
    (folder / "given.json").write_text(json.dumps(given))
    done = interpreter.run(RUN, folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return [line.split() for line in done.stdout.splitlines()]
