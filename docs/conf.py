"""The site of these pages: `sphinx-build -W --keep-going docs site` (extra `docs`)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from taso_mirage.version import __version__

project = "taso_mirage"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["plugin"]
"""A package, which is copied as it is."""
myst_heading_anchors = 4
"""As on a page of the repository, headings can be linked to."""
default_role = "code"
"""What docstrings have between single backticks."""
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
smartquotes = False
"""Two dashes are an option."""
html_theme = "furo"
html_title = f"taso_mirage {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
