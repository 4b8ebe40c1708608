"""Random modules of PyTorch under the back end: their results, their changes in place and the
memory that tensors share are eager's, at the first call and at others."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch

ROUNDED = 2e-2
Step = tuple[str, tuple[int, ...], Any]
"""An operation, the values that it takes by number, and its further arguments."""
UNARY: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "neg": torch.neg,
    "abs": torch.abs,
    "gelu": torch.nn.functional.gelu,
    "softmax": lambda x: x.float().softmax(-1) if x.dim() else x,
    "exp": lambda x: x.float().clamp(-3, 3).exp(),
    "double": lambda x: x.double(),
    "half": lambda x: x.half(),
    "long": lambda x: x.float().nan_to_num(0).clamp(-100, 100).long(),
    "bool": lambda x: x > 0,
    "turned": lambda x: x.transpose(0, -1) if x.dim() > 1 else x,
    "view": lambda x: x.reshape(-1),
    "every second": lambda x: x[::2] if x.dim() else x,
    "backwards": lambda x: x.flip(0) if x.dim() else x,
    "one": lambda x: x[0] if x.dim() and x.shape[0] else x,
    "sum": lambda x: x.sum(),
    "largest": lambda x: x.amax(-1) if x.numel() and x.dim() else x,
    "detached": lambda x: x.detach(),
    "copied": lambda x: x.clone(),
    "wider": lambda x: x.unsqueeze(0).expand(2, *x.shape),
    "halves": lambda x: x / 2,
    "where": lambda x: torch.where(x > 0, x, -x),
    "sorted": lambda x: x.sort(-1).values if x.dim() else x,
    "cumulated": lambda x: x.cumsum(-1) if x.dim() else x,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add,
    "sub": lambda x, y: x.float() - y.float(),
    "mul": torch.mul,
    "max": torch.maximum,
    "less": torch.lt,
    "stacked": lambda x, y: torch.stack([x, y]),
    "product": lambda x, y: x.float() @ y.float().mT,
}
INPLACE: dict[str, Callable[[Any], Any]] = {
    "add_": lambda x: x.add_(1),
    "mul_": lambda x: x.mul_(2),
    "row": lambda x: x[:1].zero_() if x.dim() else x.zero_(),
    "relu_": lambda x: x.relu_(),
    "copy_": lambda x: x.copy_(x.flip(0)) if x.dim() else x,
}


class RandomModule(torch.nn.Module):
    """A straight program over its arguments, a weight, and a buffer that calls may change."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("kept", torch.zeros(3, 4))
        self.steps = [_step(random, i) for i in range(random.randint(2, 9))]
        self.shape = random.choice(("one", "tuple", "dict", "inputs too"))
        self.branch = random.random() < 0.15

    def forward(self, *given: Any) -> Any:
        values = list(given)
        for name, places, _ in self.steps:
            taken = [values[p % len(values)] for p in places]
            values.append(self._made(name, taken))
        if self.branch and values[-1].float().sum() > 0:  # dynamo breaks a graph here
            values[-1] = values[-1].float() + 1
        return self._result(values, given)

    def _made(self, name: str, taken: Sequence[Any]) -> Any:
        x = taken[0]
        if name == "linear":
            return self.linear(x.float()) if x.dim() and x.shape[-1] == 4 else x
        if name == "buffer":
            self.kept.add_(x.float().nan_to_num(0).mean() if x.numel() else 1.0)
            return self.kept * 2
        if name in INPLACE:
            return INPLACE[name](x) if x.is_floating_point() else x
        if name in UNARY:
            return UNARY[name](x)
        same = taken[1].shape == x.shape and x.dim() > 1 and taken[1].dtype == x.dtype
        return BINARY[name](x, taken[1] if same else x)

    def _result(self, values: list[Any], given: Sequence[Any]) -> Any:
        match self.shape:
            case "one":
                return values[-1]
            case "tuple":
                return tuple(values[len(given) :]), 3, None
            case "dict":
                return {"last": values[-1], "first": [values[len(given)]]}
        return (*values[-2:], given[0])


def _step(random: Random, i: int) -> Step:
    """In-place operations are as frequent as others are not: they are where programs break."""
    names = [*UNARY] if random.random() < 0.5 else [*BINARY, "linear", "linear", "buffer", *INPLACE]
    return random.choice(names), (random.randrange(3 + i), random.randrange(3 + i)), None


def random_arguments(random: Random, call: int) -> list[Any]:
    """Arguments of one call: of other sizes at the last ones, some of them views that share memory,
    without elements, or of another dtype."""
    rows = 3 if call < 2 else random.choice((1, 2, 5))
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    made = [torch.randn(rows, 4, generator=generator) for _ in range(3)]
    kind = random.random()
    if kind < 0.15:
        made[1] = made[0]
    elif kind < 0.3:
        made[1] = made[0][:, :]
    elif kind < 0.4:
        made[2] = torch.randn(4, rows, generator=generator).T
    elif kind < 0.5 and call > 1:
        made = [m[:0] for m in made]
    elif kind < 0.6 and call > 1:
        made = [m.double() for m in made]
    return made


def moduled(seed: int, folder: Path) -> tuple[str, list[str]]:
    """The module of a seed: how it ran, and its differences from eager."""
    from exporter import read_once

    logging.disable(logging.CRITICAL)  # eager fails in some, which PyTorch logs
    try:
        with read_once():
            wrong = differing(seed)
    finally:
        logging.disable(logging.NOTSET)
    return "torch done", wrong


def differing(seed: int) -> list[str]:
    """Differences from eager in a few calls of the module of a seed."""
    from taso_mirage.torch.backend import CapturedGraph

    random = Random(seed)
    torch.manual_seed(seed)
    eager = RandomModule(random).eval()
    ours = copy.deepcopy(eager)
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend=lambda graph, example: CapturedGraph(graph, {"measure": False, "budget": 1}))
    wrong: list[str] = []
    with warnings.catch_warnings(), torch.inference_mode() if seed % 3 else torch.no_grad():
        warnings.simplefilter("ignore")
        for call in range(4):
            first = random_arguments(random, call)
            second = copy.deepcopy(first)  # deepcopy keeps shared memory shared
            if call == 3:
                with torch.no_grad():
                    for module in (eager, ours):
                        module.linear.weight.add_(0.5)
            wrong += [f"call {call}: {each}" for each in _compared(eager, compiled, first, second)]
    torch._dynamo.reset()
    return wrong


def _compared(eager: Any, compiled: Any, first: list[Any], second: list[Any]) -> list[str]:
    wanted, raised = _called(eager, first)
    found, failed = _called(compiled, second)
    if raised or failed:
        return [] if raised and failed else [f"eager: {raised or 'runs'}; ours: {failed or 'runs'}"]
    wrong = [] if alike(wanted, found) else ["the result"]
    wrong += [] if close(eager.kept, compiled.kept) else ["the buffer"]
    wrong += [f"the argument {i}" for i, (a, b) in enumerate(zip(first, second, strict=True)) if not close(a, b)]
    if shared(wanted, first) != shared(found, second):
        wrong.append(f"memory: eager {shared(wanted, first)}, ours {shared(found, second)}")
    return wrong


def _called(function: Any, arguments: list[Any]) -> tuple[Any, str]:
    try:
        return function(*arguments), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {str(error)[:200]}"


def leaves(value: Any) -> list[Any]:
    """The tensors of a result, in its order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, tuple | list) else []


def alike(wanted: Any, found: Any) -> bool:
    """Equal in structure and numbers."""
    if isinstance(wanted, torch.Tensor):
        return isinstance(found, torch.Tensor) and close(wanted, found)
    if type(wanted) is not type(found):
        return False
    if isinstance(wanted, dict):
        return list(wanted) == list(found) and all(alike(wanted[k], found[k]) for k in wanted)
    if isinstance(wanted, tuple | list):
        return len(wanted) == len(found) and all(alike(a, b) for a, b in zip(wanted, found, strict=True))
    return bool(wanted == found)


def close(a: Any, b: Any) -> bool:
    """Equal in dtype and shape, and within rounding to half precision: a runtime may compute a
    graph of halves in single precision."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    return torch.allclose(a.double(), b.double(), rtol=ROUNDED, atol=ROUNDED, equal_nan=True)


def shared(result: Any, arguments: Sequence[Any]) -> list[list[int]]:
    """For each tensor of a result, the arguments whose memory it has: a change in one is seen in
    the other."""
    return [
        [
            i
            for i, a in enumerate(arguments)
            if a.numel() and a.untyped_storage().data_ptr() == leaf.untyped_storage().data_ptr()
        ]
        for leaf in leaves(result)
    ]
