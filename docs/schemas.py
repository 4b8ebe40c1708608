"""Writes the JSON schemas of the package from its own types: `python docs/schemas.py [FOLDER]`
(`taso_mirage/schemas/` if left out)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import get_original_bases, is_typeddict

from taso_mirage import folder
from taso_mirage.cli import log
from taso_mirage.generate import family
from taso_mirage.report import data, explanations
from taso_mirage.rewriting import library

FOLDER = Path(__file__).parent.parent / "taso_mirage" / "schemas"
SCHEMAS: dict[str, tuple[Any, str]] = {
    "log": (Annotated[log.LogLine, Field(discriminator="event")], "One line of `taso-mirage optimize --json`."),
    "folder": (folder.FolderReport, "index.json, the report of `taso-mirage optimize FOLDER`."),
    "rules": (library.RuleFile, "A file of rules: `--rules FILE.toml`, and those of the library."),
    "rejected": (library.RejectedFile, "rejected.toml: candidates of the generator that are wrong."),
    "family": (family.FamilyFile, "A family of the generator: typed inputs and operators."),
}
READ = {"rules", "rejected", "family"}
"""Files that people write, in which a field of another name is a mistake. Our own output may have
more fields in a later version."""


class Schema(GenerateJsonSchema):
    """Without a title for every field, which would be its name again."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def typed(*modules: Any) -> Iterator[Any]:
    """The types of JSON objects that modules define."""
    for module in modules:
        yield from (t for t in vars(module).values() if is_typeddict(t) and t.__module__ == module.__name__)


def schema(name: str) -> dict[str, Any]:
    """One of SCHEMAS, with the docstrings of its types."""
    kind, about = SCHEMAS[name]
    types = list(typed(log, folder, data, explanations, library, family))
    for each in types:
        extra = {"extra": "forbid"} if name in READ else {}
        each.__pydantic_config__ = {"use_attribute_docstrings": True, **extra}
    made = TypeAdapter(kind).json_schema(schema_generator=Schema)
    for each in types:  # pydantic reads the docstrings of a type, not those of the one that it extends
        for base in filter(is_typeddict, get_original_bases(each)):
            inherited = TypeAdapter(base).json_schema(schema_generator=Schema)["properties"]
            for field, said in made.get("$defs", {}).get(each.__name__, {}).get("properties", {}).items():
                said |= {k: v for k, v in inherited.get(field, {}).items() if k == "description"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": name, "description": about}


def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in SCHEMAS:
        text = json.dumps(schema(name), indent=2)
        (target / f"{name}.schema.json").write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
