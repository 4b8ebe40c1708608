"""The targets by name.

A new one is a folder beside these, a line here, and one in `devices.stamp.KNOWN_OPTIONS`; or an
entry point of another package (docs/plugins.md).
"""

from __future__ import annotations

import inspect
from dataclasses import replace

from taso_mirage import plugins
from taso_mirage.devices.cpu.options import THREADS
from taso_mirage.devices.stamp import known_options
from taso_mirage.errors import InvalidOption
from taso_mirage.system.wording import option
from taso_mirage.targets.cpu.target import CPU
from taso_mirage.targets.cuda.target import CUDA
from taso_mirage.targets.openvino.target import OPENVINO
from taso_mirage.targets.protocol import Target

TARGETS: dict[str, Target] = {t.name: t for t in (CPU, CUDA, OPENVINO)}
"""The targets of this package."""
AUTO = "auto"
"""The name for all targets on this machine's cores: the first is optimized for, and the fastest is
taken."""


def target(name: str) -> Target:
    """The target of this name; of AUTO, the one that is optimized for.

    Raises InvalidOption where there is none.
    """
    if name in TARGETS or name == AUTO:
        return TARGETS.get(name, CPU)
    found = plugins.plugin_named(plugins.TARGET_GROUP, name)
    if found is None:
        others = [plugin.name for plugin in plugins.plugins(plugins.TARGET_GROUP)]
        raise InvalidOption(
            f"{option('target', name)} is not known; the targets are: {', '.join([*TARGETS, *others, AUTO])}"
        )
    made: Target = found.load()
    said = inspect.getattr_static(made, "name", None)
    if said != name:
        raise found.refused(f"gives no target of that name; its `name` is {said!r}")
    there = dir(made)
    if lacking := next((each for each in dir(Target) if not each.startswith("_") and each not in there), None):
        raise found.refused(f"gives no target: it has no {lacking!r} (taso_mirage.targets.protocol.Target)")
    return made


def runtimes_beside(target: Target) -> tuple[Target, ...]:
    """The targets of this package on the same hardware as one of them, with as many threads."""
    others = (each for each in TARGETS.values() if each.on_cores and target.on_cores and each.name != target.name)
    threads = dict(target.options).get(THREADS)
    return tuple(each if threads is None else on_threads(each, int(threads)) for each in others)


def targets_with_kernels() -> list[str]:
    """The names of this package's targets for which there are fused kernels."""
    return [name for name, each in TARGETS.items() if each.lowering is not None]


def on_threads(target: Target, threads: int) -> Target:
    """The target with a number of threads for each run.

    Raises InvalidOption where its runtime has no such option.
    """
    if THREADS not in (known_options(target.name) or {}):
        raise InvalidOption(f"{option('threads', threads)}: {target.name} takes no number of threads; leave it out")
    others = tuple(each for each in target.options if each[0] != THREADS)
    made: Target = replace(target, options=(*others, (THREADS, str(threads))))  # type: ignore[type-var]
    return made
