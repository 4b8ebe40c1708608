"""Models in a target's runtime, which runs in a process of its own (`child.py`): sessions, single
runs, and interleaved timing."""

from __future__ import annotations

import tempfile
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import InvalidModel, RunFailed, RunRefused, RuntimeCrashed
from taso_mirage.ir.model import Model, Weight
from taso_mirage.ir.terms import Tensor
from taso_mirage.measure import native
from taso_mirage.measure.child import child, in_child
from taso_mirage.measure.native import Arrays, Run, pause_between
from taso_mirage.measure.target import CPU, Target, lower_levels
from taso_mirage.measure.timing import Ends
from taso_mirage.onnx_io import save, serialize, serialize_apart, serialize_types
from taso_mirage.onnx_io.external import FilesInPlace
from taso_mirage.onnx_io.files import checked
from taso_mirage.operators.work import size
from taso_mirage.system.spending import Purpose, spent
from taso_mirage.targets.profile import RunNode, TimedNode, optimized_operators, profiled, profiled_seconds
from taso_mirage.targets.protocol import Source, Trusted

Content = tuple[Source, Mapping[str, Weight]]
"""A model's bytes, or the path of its file, and the weights that these leave out."""
_Source = Callable[[], AbstractContextManager[Content]]
"""A function that gives a model's content when a session is created, and again if the child process
was restarted."""


class Session:
    """A model loaded in the child process; see `targets.protocol`.

    `source`: the model's bytes, its path, or a function that gives them. Its kernels run where it
    is `Trusted`.
    """

    def __init__(self, source: Source | _Source, target: Target = CPU, alone: bool = False) -> None:
        self.target, self._alone = target, alone
        self._source: _Source = source if callable(source) else lambda: nullcontext((source, {}))
        self._place = _Place()
        self.captures = False
        self.number()

    def run(self, inputs: Arrays) -> list[Any]:
        """The outputs, in the order of the model."""
        return in_child(native.run_prepared, self.number(), fed(inputs))

    def inputs(self) -> dict[str, Tensor]:
        """The types of the inputs; dims that are not fixed are refused."""
        return in_child(native.input_types, self.number())

    def prepared(self, inputs: Arrays) -> PreparedRun:
        """A function that runs the model on these inputs and returns the wall seconds; on CUDA they
        stay on the device."""
        return PreparedRun(self, inputs, False)

    def bound(self, inputs: Arrays) -> PreparedRun:
        """A prepared run with inputs and outputs bound in place; see `RuntimeSession.bound`."""
        return PreparedRun(self, inputs, True)

    def number(self) -> int:
        """Return the number of the session in the child process."""
        return self._place.number(self._open)

    def _open(self) -> int:
        with self._source() as (source, apart):
            there = _numbers_there(apart, self.target.on_cores)
            number, self.captures = in_child(native.open_session, source, self.target, self._alone, there)
        return number


def fed(inputs: Arrays) -> dict[str, Any]:
    """Inputs in a form that runtimes accept: numpy often returns a number, which they reject, in
    place of an array of rank 0."""
    return {name: np.asarray(value) if np.isscalar(value) else value for name, value in inputs.items()}


class PreparedRun:
    """A session's run on inputs that stay in the child process.

    It gives the wall seconds, taken there.
    """

    def __init__(self, session: Session, inputs: Arrays, bound: bool) -> None:
        self._session, self._inputs, self._bound = session, fed(inputs), bound
        self._place = _Place()
        self._number()

    def __call__(self) -> float:
        return in_child(native.once, self._number())

    def turn(self) -> float:
        """One turn of `interleaved`, all of it in the child process, in seconds."""
        return in_child(native.turn_of, self._number())

    def spins(self, seconds: float) -> bool:
        """Whether threads of the session go on after a run, see `native.spins`."""
        return in_child(native.spins_after, self._number(), seconds)

    def _number(self) -> int:
        return self._place.number(lambda: in_child(native.prepare, self._session.number(), self._inputs, self._bound))


class _Place:
    """An object in the child process. It is created on first use, again after a restart of the
    process, and released with its owner."""

    def __init__(self) -> None:
        self._life, self.kept = -1, 0
        self._end: weakref.finalize[[int, int], _Place] | None = None

    def number(self, make: Callable[[], int]) -> int:
        if not self.there():
            self.keep(make())
        return self.kept

    def there(self) -> bool:
        """Whether the current child process has the object."""
        return self._life == child().life

    def keep(self, number: int) -> None:
        """Record that the child process has the object, with this number."""
        self._life, self.kept = child().life, number
        if self._end is not None:
            self._end.detach()
        self._end = weakref.finalize(self, child().drop, self._life, number)
        self._end.atexit = False


TOGETHER = 1 << 26
"""Bytes of weights that go to the child process in one call."""
_THERE: WeakKeyDictionary[Weight, _Place] = WeakKeyDictionary()
"""The weights that the child process holds, each once, as long as they exist here."""


def _numbers_there(weights: Mapping[str, Weight], aligned: bool) -> dict[str, int]:
    """The numbers of weights in the child process, which gets those that it does not have, many in
    one call."""
    places = {name: _THERE.setdefault(weight, _Place()) for name, weight in weights.items()}
    some, total = dict[_Place, NDArray[Any]](), 0
    for name, place in places.items():
        if place.there() or place in some:
            continue
        some[place] = weights[name].numpy()
        total += some[place].nbytes
        if total > TOGETHER:
            _keep_there(some, aligned)
            some, total = {}, 0
    _keep_there(some, aligned)
    return {name: place.kept for name, place in places.items()}


def _keep_there(some: Mapping[_Place, NDArray[Any]], aligned: bool) -> None:
    if some:
        numbers = in_child(native.keep_weights, list(some.values()), aligned)
        for place, number in zip(some, numbers, strict=True):
            place.keep(number)


_Key = tuple[int, Target, bool, tuple[str, ...]]
_OPEN: WeakValueDictionary[_Key, Session] = WeakValueDictionary()
"""Existing sessions on whole models, by the identity of the model, which they keep alive."""


def open_in_child(
    model: Model,
    target: Target = CPU,
    source: bool = False,
    check: bool = False,
    without: Collection[str] = (),
    anew: bool = False,
) -> Session:
    """A session on a model, or with `source` on the model as it was read, `without` some attributes
    (`onnx_io.serialization.as_onnx`); onnx's checker comes first if asked. Kernels that the model
    carries run if they are trusted (`Model.trusted`), and nothing that a caller says changes that.

    It is the one that is there, if somebody has one of the same model and options, unless it is
    asked for `anew`: where a session has its memory may make it faster or slower. Sessions share
    large weights, which go to the child process once, where the target's runtime takes them apart.
    Else a model above 1.5 GB goes through a file.
    """
    if check:
        checked(serialize_types(model, source))
    key = (id(model), target, source, tuple(sorted(without)))
    known = None if anew else _OPEN.get(key)
    return known or _loaded(key, model, target, source, without)


@spent(Purpose.LOADS)
def _loaded(key: _Key, model: Model, target: Target, source: bool, without: Collection[str]) -> Session:
    made = _OPEN[key] = open_part(model, target, source, without)
    return made


@spent(Purpose.CHECKS, usual=True)
def open_part(model: Model, target: Target = CPU, source: bool = False, without: Collection[str] = ()) -> Session:
    """A session on a part of a model, which counts as no load of a whole model; the arguments are
    those of `open_in_child`."""
    if target.shares:
        # Weights inside may be too large for protobuf; a model that is refused so may be taken as
        # before, or refused as clearly.
        with suppress(RunFailed, ValueError):
            return Session(lambda: _apart(model, target, source, without), target)
    return Session(lambda: _content(model, source, without), target)


def runnable(model: Model, source: bool = False, without: Collection[str] = ()) -> Source:
    """A model's bytes for a runtime, which runs its kernels if they are trusted."""
    return _said(model, serialize(model, source, without))


def _said(model: Model, content: bytes | str) -> Source:
    return Trusted(content) if model.trusted else content


@contextmanager
def _apart(model: Model, target: Target, source: bool, without: Collection[str]) -> Iterator[Content]:
    aligned = native.ALIGNED if target.on_cores else 1
    with FilesInPlace() as files:
        content, weights = serialize_apart(model, source, without, files=files, aligned=aligned)
        yield _said(model, content), weights


def profile(model: Model, inputs: Arrays, seconds: float, target: Target = CPU) -> list[RunNode]:
    """The nodes that the runtime makes of the model as it was read, each with its time; see
    `targets.profile`."""
    with _content(model, True) as (content, _):
        asked = content, target.stamp.providers(), fed(inputs), seconds, target.stamp.threads, target.stamp.level
        return in_child(profiled, *asked)


@spent(Purpose.OPERATORS)
def timed_nodes(
    model: Model, inputs: Arrays, seconds: float, target: Target = CPU, source: bool = False
) -> tuple[list[TimedNode], float]:
    """The nodes of a run with their seconds, and those of a run without the profiler, for a target
    that `profiles`; see `targets.profile`. With `source` of the model as it was read."""
    with _content(model, source) as (content, _):
        asked = content, target.stamp.providers(), fed(inputs), seconds, target.stamp.threads, target.stamp.level
        return in_child(profiled_seconds, *asked)


def operators(content: bytes, target: Target = CPU) -> list[str]:
    """The operators into which the runtime turns a small model."""
    return in_child(optimized_operators, content, target.stamp.providers())


def check_source(model: Model) -> None:
    """Have onnx's checker check the model as it was read. Raises the checker's message."""
    checked(serialize_types(model, True))


UNREGISTERED = "is not a registered function/op"
CUSTOM = (
    "such an operator is in a library of custom operators, and none is loaded here: cut out the part of the model that has none "
    "(onnx.utils.extract_model) and optimize that"
)
UNOPTIMIZABLE = "this is the original: it has to run in the runtime alone before it can be made faster"


def _at_lower_level(model: Model, target: Target) -> Session | None:
    """A session on the model as it was read at the highest lower level at which it loads; where it
    does not load at the lowest one, the others are not tried."""
    *higher, lowest = lower_levels(target) or (target,)
    try:
        found = open_in_child(model, lowest, source=True)
    except (RunRefused, RuntimeCrashed):
        return None
    for level in higher:
        with suppress(RunRefused, RuntimeCrashed):
            return open_in_child(model, level, source=True)
    return found


def original(model: Model, target: Target = CPU, anew: bool = False) -> Session:
    """A session on the model as it was read, on the CPU at the highest level of the runtime's own
    optimizations at which it loads: its `target` says so; `anew` as in `open_in_child`. Raises
    InvalidModel where the runtime refuses it at every level, and RuntimeCrashed where it crashes on
    it."""
    try:
        return open_in_child(model, target, source=True, anew=anew)
    except (RunRefused, RuntimeCrashed) as error:
        if (lower := _at_lower_level(model, target)) is not None:
            return lower
        if isinstance(error, RuntimeCrashed):
            raise
        why = CUSTOM if UNREGISTERED in str(error) else UNOPTIMIZABLE
        raise InvalidModel(f"{error}; {why}") from None


@contextmanager
def _content(model: Model, source: bool, without: Collection[str] = ()) -> Iterator[Content]:
    if weight_bytes(model) < INSIDE:
        yield runnable(model, source, without), {}
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        save(model, path, source, without)
        yield _said(model, str(path)), {}


INSIDE = 1_500_000_000
"""Bytes of weights from which a model goes through a file: protobuf ends at 2 GB."""


def weight_bytes(model: Model) -> int:
    """Bytes of a model's weights, but for texts."""
    return sum(size(n.tensor) for n in model.nodes() if n.op == "weight" and n.dtype != "string")


ROUNDS, FEW, MOST = 15, 7, 2000
"""The numbers of rounds of a comparison: the minimum, the minimum for slow models (fewer give no
verdict), and the maximum."""


@spent(Purpose.COMPARISONS)
def interleaved(
    sessions: Sequence[Session],
    inputs: Arrays,
    seconds: float,
    least: int = ROUNDS,
    patience: float = 4.0,
    ends: Ends = lambda times: False,
) -> list[list[float]]:
    """Run times of every session, in turn A B B A A B ..., so that a drift of the machine meets all
    alike.

    A turn is a pause until the other sessions' threads sleep, if they spin at all, a run to warm up
    and one that counts; of a fast model a block of runs, of which the median counts. There are
    `least` rounds; of models so slow that these would take more than `patience` times the
    `seconds`, fewer, down to FEW: their times vary less. On a machine that has become slower
    meanwhile no round begins after that time either, and after the command's last end there are no
    FEW. Once `ends` says so of the times there is no other round, from FEW on where `least` take
    more than the `seconds`.
    """
    deadline = child().deadline
    runs = [session.prepared(inputs) for session in sessions]
    round_takes = 0.0
    for run in runs:
        run()
        round_takes += 2 * run()
    pause = pause_between(runs, getattr(sessions[0], "target", CPU), _spins)  # a peer has none
    enough = min(least, FEW) if seconds < least * round_takes else least
    if patience * seconds < least * round_takes:
        least = max(min(least, FEW), int(patience * seconds / round_takes))
    times: list[list[float]] = [[] for _ in runs]
    began = time.perf_counter()
    rounds = 0
    while rounds < least or (time.perf_counter() < began + seconds and rounds < MOST):
        late = rounds >= FEW and time.perf_counter() > began + patience * seconds
        if late or (rounds and deadline.last() <= 0) or (rounds >= min(least, enough) and ends(times)):
            break
        order = range(len(runs)) if rounds % 2 == 0 else reversed(range(len(runs)))
        for i in order:
            time.sleep(pause)
            times[i].append(runs[i].turn() if isinstance(runs[i], PreparedRun) else native.turn(runs[i]))
        rounds += 1
    return times


def _spins(run: Run, seconds: float) -> bool:
    """A peer's run, which may be in any process, is assumed to spin."""
    return not isinstance(run, PreparedRun) or run.spins(seconds)


@cache
def child_providers() -> list[str]:
    """The execution providers that this ONNX Runtime was built with."""
    return in_child(native.installed_providers)


def working_providers() -> list[str]:
    """The providers that work on this machine: those that a session on a tiny model actually
    uses."""
    content = _tiny()
    return [p for p in child_providers() if in_child(native.starts, content, p)]


def begin_runtime(target: Target) -> None:
    """Start the child process and the target's runtime in it, beside this process's work; an error
    is raised again where a model is opened."""
    child().begin(native.start_runtime, _tiny(), target)


def _tiny() -> bytes:
    """A model of one operator on one number."""
    from taso_mirage.ir.terms import Graph, variable
    from taso_mirage.onnx_io.build import standalone
    from taso_mirage.operators.ops import term

    x = variable("x", Tensor("float32", (1,)))
    return serialize(standalone(Graph((x,), (term("relu", x),)), {"": 17}))


def device(target: Target = CPU) -> str:
    """A key of the machine for measurements: processor and the cores this process may use, or the
    GPU."""
    return target.machine


@cache
def child_version() -> str:
    """ONNX Runtime's version."""
    return in_child(native.onnx_runtime_version)
