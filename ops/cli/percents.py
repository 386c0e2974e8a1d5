"""Parts of a whole, as they are typed."""

from __future__ import annotations

import re
from typing import Any

import click


class Percent(click.ParamType[float]):
    """`10%`, `0.5%` or `10`, above 0 and at most 100, as a part of 1."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d{1,3}(?:\.\d{1,9})?) ?%?", value)
        part = float(found[1]) / 100 if found else 0.0
        if not 0 < part <= 1:
            self.fail(f"{value!r}: a percentage above 0 and at most 100, as 10% or 0.5%", param, ctx)
        return part
