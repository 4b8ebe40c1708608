"""The site of these pages: `sphinx-build -W --keep-going docs site` (extra `docs`)."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from taso_mirage.version import __version__

project = "taso_mirage"
version = release = __version__
NOTEBOOKS = find_spec("myst_nb") is not None
"""Whether the site has the notebooks, with the outputs that are stored in them."""
extensions = ["myst_nb" if NOTEBOOKS else "myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["plugin", "hosts", *([] if NOTEBOOKS else ["notebooks/*.ipynb"])]
"""A package, which is copied as it is, and files that pages include."""
nb_execution_mode = "off"
suppress_warnings = [] if NOTEBOOKS else ["toc.not_readable"]
myst_heading_anchors = 4
"""As on a page of the repository, headings can be linked to."""
default_role = "code"
"""Text that docstrings have between single backticks."""
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
smartquotes = False
"""Two dashes are an option."""
html_theme = "furo"
html_title = f"taso_mirage {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False


def skip_constructor(app, what, name, member, skip, options):
    """Whether a member is left out: nobody makes a `Result` or the like with `__init__`."""
    return name in ("__init__", "__new__") or None


def setup(app):
    app.connect("autodoc-skip-member", skip_constructor)
