"""Pages and pictures: the Jinja2 templates in `templates/`, which escape every value.

No other module writes HTML or SVG.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def render_template(template: str, **values: Any) -> str:
    """A template with values in it.

    Names may be hostile. Nothing is marked as safe, so every value is escaped, except markup from
    another template.
    """
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    # Imported here, because most commands write no page.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("taso_mirage.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    made.globals["script_digest"] = _script_digest
    return made


def page_script() -> str:
    """The script of a page: its files one after the other."""
    return "".join(map(render_template, ("search.js", "graph.js", "export.js")))


def _script_digest() -> str:
    """The digest of the only script that the page's policy permits."""
    script = page_script().encode()
    return f"sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}"
