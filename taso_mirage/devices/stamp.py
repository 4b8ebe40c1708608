"""The stamp of a file: the target that it was measured on, with the options of its runtime, as
metadata of the model.

A stamp is data. Targets, names and values must be on a list; a file with any other is rejected,
because it may be from anybody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from taso_mirage import plugins
from taso_mirage.devices.cpu import options as cpu
from taso_mirage.devices.cuda import options as cuda
from taso_mirage.devices.openvino import options as openvino
from taso_mirage.errors import InvalidModel

TargetOptions = tuple[tuple[str, str], ...]
TARGET_KEY, OPTIONS_KEY = "taso_mirage.target", "taso_mirage.options"
KEYS = frozenset((TARGET_KEY, OPTIONS_KEY))
KNOWN_OPTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "cpu": cpu.KNOWN,
    "cuda": cuda.KNOWN,
    "openvino": openvino.KNOWN,
}
"""The options that a file may have, by target, each with its values."""
DEFAULTS: Mapping[str, TargetOptions] = {"cpu": (), "cuda": cuda.DEFAULT, "openvino": openvino.DEFAULT}
"""The default options of each target."""
PROVIDERS = {"cpu": cpu.PROVIDER, "cuda": cuda.PROVIDER}
"""ONNX Runtime's execution providers, by target."""
LONGEST = 1000
"""The largest number of characters of a stamp's options."""
Provider = str | tuple[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Stamp:
    """A target's name and the options of its runtime."""

    target: str = "cpu"
    options: TargetOptions = ()

    def __post_init__(self) -> None:
        known = known_options(self.target)
        if known is None:
            raise InvalidModel(
                f"the model was made for the target {self.target[:40]!r}, this version knows {', '.join(KNOWN_OPTIONS)}; update "
                "taso-mirage, or name a target"
            )
        for name, value in self.options:
            if value not in known.get(name, ()):
                raise InvalidModel(
                    f"the model asks for the option {name[:40]!r} = {value[:40]!r} of {self.target}, which is not known; update "
                    "taso-mirage, or name a target"
                )

    @property
    def graph(self) -> bool:
        """Whether it was measured as a captured CUDA graph, where the whole model runs on the
        GPU."""
        return (cuda.GRAPH, "1") in self.options

    @property
    def threads(self) -> int:
        """The threads of a run on the CPU; 0 for as many as there are cores."""
        return int(dict(self.options).get(cpu.THREADS, 0))

    @property
    def level(self) -> str:
        """ONNX Runtime's name of the highest level of its optimizations on the CPU."""
        return cpu.LEVELS.get(dict(self.options).get(cpu.OPTIMIZATIONS, ""), cpu.FULL_LEVEL)

    def providers(self, graph: bool = False) -> list[Provider]:
        """ONNX Runtime's providers with their options.

        With `graph`, runs are captured as a CUDA graph. This is only for sessions with bound inputs
        and outputs; others would return the outputs of the first run again.
        """
        own = PROVIDERS.get(self.target, cpu.PROVIDER)
        if own == cpu.PROVIDER:
            return [own]
        options = dict(self.options)
        options.pop(cuda.GRAPH, None)
        return [(own, {**options, cuda.GRAPH: "1"} if graph else options), cpu.PROVIDER]

    def metadata(self) -> dict[str, str]:
        """The metadata entries that `read_stamp` reads."""
        return {TARGET_KEY: self.target, OPTIONS_KEY: json.dumps(dict(self.options))}


def known_options(target: str) -> Mapping[str, tuple[str, ...]] | None:
    """The options that a file may have, each with its values; for a plug-in's target its
    `known_options`. None for an unknown target."""
    if target in KNOWN_OPTIONS:
        return KNOWN_OPTIONS[target]
    plugin = plugins.plugin_named(plugins.TARGET_GROUP, target)
    if plugin is None:
        return None
    found: Mapping[str, tuple[str, ...]] = getattr(plugin.load(), "known_options", {})
    if not isinstance(found, Mapping) or not all(isinstance(values, tuple) for values in found.values()):
        raise plugin.refused("has `known_options` that are no table of names, each with a tuple of values")
    return found


def read_stamp(metadata: Mapping[str, str]) -> Stamp | None:
    """The stamp in a file's metadata; None where there is none.

    Raises InvalidModel for one that is not known.
    """
    if not KEYS & set(metadata):
        return None
    text = metadata.get(OPTIONS_KEY, "{}")
    try:
        found = json.loads(text) if len(text) <= LONGEST else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InvalidModel(f"the metadata {OPTIONS_KEY} of the model is no table of options; name a target")
    return Stamp(metadata.get(TARGET_KEY, "cpu"), tuple(found.items()))
