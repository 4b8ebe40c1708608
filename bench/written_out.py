"""Recurrences that PyTorch's exporters write out step by step, beside ONNX Runtime on the same
file, PyTorch and torch.compile.

    python bench/written_out.py [NAME ...] [--steps 64] [--budget 60] [--without-compile] [-o FILE]

The modules call a cell, or repeat a step, in a Python loop. Each is exported twice: traced
(TorchScript) and by torch.export. Each file is optimized with the defaults and a certificate, which
the checker follows. Then both files and the module run in turn on two threads, each in blocks of
runs: threads that spin after a run would slow the next runtime. Prints a table and writes
bench/results/written_out-cpu2.json; rows that are not named stay.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from rows import Rows  # noqa: E402

import taso_mirage  # noqa: E402
from taso_mirage.certificates.follow import follow  # noqa: E402
from taso_mirage.certificates.judge import CaseJudge  # noqa: E402
from taso_mirage.onnx_io import load  # noqa: E402

WIDTH, HEADS, THREADS = 128, 4, 2
BLOCKS, FIRST, RUNS = 7, 5, 25
"""The blocks of each, in turn, and the runs of a block, of which the first do not count."""


class Cells(nn.Module):
    """Cells of PyTorch, one above the other, in each step."""

    def __init__(self, *cells: nn.Module) -> None:
        super().__init__()
        self.cells = nn.ModuleList(cells)

    def forward(self, x: Tensor) -> Tensor:
        states: list[Any] = [None for _ in self.cells]
        made = []
        for t in range(x.shape[1]):
            y = x[:, t]
            for i, cell in enumerate(self.cells):
                states[i] = cell(y, states[i])
                y = states[i][0] if isinstance(states[i], tuple) else states[i]
            made.append(y)
        return torch.stack(made, 1)


class BothDirections(nn.Module):
    """An LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.forth, self.back = Cells(nn.LSTMCell(WIDTH, WIDTH)), Cells(nn.LSTMCell(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.forth(x), self.back(x.flip(1)).flip(1)], -1)


class GatedDelta(nn.Module):
    """The gated delta rule as one step after the other (Yang et al., ICLR'25, equation 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.gates, self.out = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, 2 * HEADS),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        n, steps, _ = x.shape
        q, k, v = (y.reshape(n, steps, HEADS, -1) for y in self.qkv(x).chunk(3, -1))
        k = F.normalize(k, dim=-1)
        beta, decay = self.gates(x).chunk(2, -1)
        beta, decay = beta.sigmoid(), torch.exp(-F.softplus(decay))
        state, made = x.new_zeros(n, HEADS, k.shape[-1], v.shape[-1]), []
        for t in range(steps):
            state = state * decay[:, t, :, None, None]
            seen = (state * k[:, t].unsqueeze(-1)).sum(-2)
            update = (v[:, t] - seen) * beta[:, t].unsqueeze(-1)
            state = state + k[:, t].unsqueeze(-1) * update.unsqueeze(-2)
            made.append((state * q[:, t].unsqueeze(-1)).sum(-2))
        return self.out(torch.stack(made, 1).reshape(n, steps, -1))


class SelectiveScan(nn.Module):
    """Mamba's layer as one step after the other (Gu and Dao 2023, section 3)."""

    def __init__(self, size: int = 16, rank: int = 8) -> None:
        super().__init__()
        self.split = [rank, size, size]
        self.enter, self.conv = nn.Linear(WIDTH, 2 * WIDTH), nn.Conv1d(WIDTH, WIDTH, 4, groups=WIDTH, padding=3)
        self.choose, self.step, self.leave = (
            nn.Linear(WIDTH, sum(self.split)),
            nn.Linear(rank, WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.a, self.d = nn.Parameter(-0.5 - torch.rand(WIDTH, size)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        n, steps, _ = x.shape
        u, gate = self.enter(x).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :steps].transpose(1, 2))
        delta, b, c = self.choose(u).split(self.split, -1)
        delta = F.softplus(self.step(delta))
        decay = torch.exp(delta.unsqueeze(-1) * self.a)
        enters = delta.unsqueeze(-1) * b.unsqueeze(2) * u.unsqueeze(-1)
        state, made = x.new_zeros(n, WIDTH, self.split[1]), []
        for t in range(steps):
            state = decay[:, t] * state + enters[:, t]
            made.append((state @ c[:, t].unsqueeze(-1)).squeeze(-1))
        return self.leave((torch.stack(made, 1) + u * self.d) * F.silu(gate))


class Average(nn.Module):
    """An exponential moving average."""

    def forward(self, x: Tensor) -> Tensor:
        made = [x[:, 0]]
        for t in range(1, x.shape[1]):
            made.append(0.9 * made[-1] + 0.1 * x[:, t])
        return torch.stack(made, 1)


class Transport(nn.Module):
    """Sinkhorn's iteration in log space: a matching of rows (Sarlin et al., CVPR'20, section
    3.2)."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.project(x) @ x.transpose(1, 2) / WIDTH**0.5
        u = v = x.new_zeros(x.shape[:2])
        for _ in range(x.shape[1]):
            u = -torch.logsumexp(scores + v.unsqueeze(1), 2)
            v = -torch.logsumexp(scores + u.unsqueeze(2), 1)
        return scores + u.unsqueeze(2) + v.unsqueeze(1)


class Equilibrium(nn.Module):
    """The fixed point of a layer (Bai et al., NeurIPS'19, section 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        given = self.outer(x)
        z = torch.zeros_like(given)
        for _ in range(x.shape[1]):
            z = torch.tanh(self.inner(z) + given)
        return z


class Shrinkage(nn.Module):
    """Sparse codes over a dictionary by iterative shrinkage (Beck and Teboulle 2009, section 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.dictionary = nn.Parameter(torch.randn(WIDTH, WIDTH // 2) * 0.05)

    def forward(self, x: Tensor) -> Tensor:
        seen, z = x @ self.dictionary, torch.zeros_like(x)
        for _ in range(x.shape[1]):
            z = F.softshrink(z - 0.1 * ((z @ self.dictionary - seen) @ self.dictionary.T), 0.05)
        return z


class Sampler(nn.Module):
    """A sampler of a diffusion model whose steps have embeddings (Song et al., ICLR'21, equation
    12)."""

    def __init__(self, steps: int = 64) -> None:
        super().__init__()
        self.embedded = nn.Parameter(torch.randn(steps, WIDTH) * 0.1)
        self.noise = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.kept = torch.linspace(0.01, 0.99, steps + 1).tolist()

    def forward(self, x: Tensor) -> Tensor:
        for i, (a, b) in enumerate(pairwise(self.kept)):
            e = self.noise(x + self.embedded[i])
            x = b**0.5 * (x - (1 - a) ** 0.5 * e) / a**0.5 + (1 - b) ** 0.5 * e
        return x


MODULES: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: Cells(nn.LSTMCell(WIDTH, WIDTH)),
    "GRU": lambda: Cells(nn.GRUCell(WIDTH, WIDTH)),
    "RNN": lambda: Cells(nn.RNNCell(WIDTH, WIDTH)),
    "two layers of GRU": lambda: Cells(nn.GRUCell(WIDTH, WIDTH), nn.GRUCell(WIDTH, WIDTH)),
    "LSTM in both directions": BothDirections,
    "gated delta rule": GatedDelta,
    "selective scan": SelectiveScan,
    "moving average": Average,
    "optimal transport": Transport,
    "fixed point": Equilibrium,
    "shrinkage": Shrinkage,
    "sampler": Sampler,
}


def median(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The seconds of each: the median block of the medians of its runs. The blocks take turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _, (name, run) in product(range(BLOCKS), runs.items()):
        taken = []
        for _ in range(FIRST + RUNS):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
        times[name].append(float(np.median(taken[FIRST:])))
    return {name: float(np.median(found)) for name, found in times.items()}


def row(name: str, exporter: str, given: argparse.Namespace) -> dict[str, Any]:
    """The times of one module by one exporter."""
    torch.manual_seed(0)
    module, x = MODULES[name]().eval(), torch.randn(1, given.steps, WIDTH)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        before, after, said = (Path(folder) / each for each in ("before.onnx", "after.onnx", "steps.json"))
        torch.onnx.export(module, (x,), before, dynamo=exporter == "torch.export", external_data=False, verbose=False)
        start = time.perf_counter()
        asked = {"output": after, "certificate": said, "budget": given.budget}
        _, result = taso_mirage.optimize(before, return_result=True, **asked)
        took = time.perf_counter() - start
        followed = follow(load(before), load(after), json.loads(said.read_text()), CaseJudge())
        original = onnxruntime.InferenceSession(str(before), options)
        ours = taso_mirage.session(after, trust_kernels=True, options=options)
        feed = {original.get_inputs()[0].name: x.numpy()}
        runs: dict[str, Callable[[], Any]] = {
            "original": lambda: original.run(None, feed),
            "ours": lambda: ours.run(None, feed),
            "eager": lambda: module(x),
        }
        if not given.without_compile:
            compiled = torch.compile(module)
            runs["compiled"] = lambda: compiled(x)
        wanted = module(x).numpy()
        for run in (runs["original"], runs["ours"]):
            np.testing.assert_allclose(run()[0], wanted, 1e-3, 1e-4)
        times = median(runs)
    return {
        "case": f"{name}, {exporter}",
        "model": name,
        "exporter": exporter,
        "length": given.steps,
        **times,
        "ratio": times["original"] / times["ours"],
        "nodes": [result.terms_before, result.terms_after],
        "kernels": len(result.kernels),
        "equalities": sum(followed.equalities.values()),
        "by_the_prover_alone": len(followed.alone),
        "seconds": took,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODULES))
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--without-compile", action="store_true", help="no column of torch.compile")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(THREADS)
    versions = {"onnxruntime": onnxruntime.__version__, "torch": torch.__version__}
    head = {"benchmark": "written_out", "device": "cpu2", "versions": versions}
    rows = Rows(given.output or ROOT / "bench" / "results" / "written_out-cpu2.json", head)
    cases = {f"{n}, {e}": (n, e) for n, e in product(given.names or MODULES, ("trace", "torch.export"))}
    rows.run(cases, lambda case: row(*cases[case], given))


if __name__ == "__main__":
    main()
