"""Model packages for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.schemas.package import Package, load_package

TAGS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["bright", "dark", "calm"]},
        "score": {"type": "integer", "minimum": 1, "maximum": 9},
        "tags": {
            "type": "array",
            "items": {"type": "string", "pattern": "^[a-z]{2,8}$"},
            "minItems": 1,
            "maxItems": 3,
        },
    },
    "required": ["mood", "score", "tags"],
    "additionalProperties": False,
}


def write_package(
    directory: Path,
    *,
    model: str = "tagger",
    version: str = "1",
    weights: str = "none/none",
    output: dict[str, Any] | None = None,
    user: str | None = "Tag {{ title }}.",
    extra: str = "",
) -> Path:
    """A package's folder. `extra` is TOML that stands before the tables."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = [f'model = "{model}"', f'version = "{version}"', "contract = 1", f'weights = "{weights}"', extra]
    if output is not None:
        (directory / "output.schema.json").write_text(json.dumps(output))
        lines.append('output = "output.schema.json"')
    if user is not None:
        lines += ["[prompt]", f"user = {json.dumps(user)}"]
    (directory / "package.toml").write_text("\n".join(lines) + "\n")
    return directory


def a_package(directory: Path, **options: Any) -> Package:
    """A package, loaded."""
    return load_package(write_package(directory, **options))
