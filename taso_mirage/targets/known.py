"""The targets by name.

A new one is a folder beside these, a line here, and one in `stamp.KNOWN_OPTIONS`; or an entry point
of another package (docs/plugins.md).
"""

from __future__ import annotations

from taso_mirage import plugins
from taso_mirage.errors import InvalidOption
from taso_mirage.targets.cpu.target import CPU
from taso_mirage.targets.cuda.target import CUDA
from taso_mirage.targets.openvino.target import OPENVINO
from taso_mirage.targets.protocol import Target

TARGETS: dict[str, Target] = {t.name: t for t in (CPU, CUDA, OPENVINO)}
"""Those of this package."""


def target(name: str) -> Target:
    """The target of this name.

    Raises InvalidOption where there is none.
    """
    if name in TARGETS:
        return TARGETS[name]
    found = plugins.plugin_named(plugins.TARGET_GROUP, name)
    if found is None:
        others = [plugin.name for plugin in plugins.plugins(plugins.TARGET_GROUP)]
        raise InvalidOption(f"--target {name} is not known; the targets are: {', '.join([*TARGETS, *others])}")
    made: Target = found.load()
    if getattr(made, "name", None) != name:
        raise found.refused(f"gives no target of that name; its `name` is {getattr(made, 'name', None)!r}")
    return made
