"""How an output schema is held while text is generated: by which backend, and how much of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from headrace.schemas import backend_rewriting as rewriting
from headrace.schemas.errors import InvalidSchema
from headrace.schemas.format_patterns import FORMAT_PATTERNS, is_format
from headrace.schemas.keyword_sites import Site, draft_of, sites_of
from headrace.schemas.keyword_support import (
    GUIDANCE_FORMATS,
    LOOSE_IN_GUIDANCE,
    LOOSE_IN_XGRAMMAR,
    SUPPORT,
    XGRAMMAR_FORMATS,
    Backend,
    Support,
)
from headrace.schemas.messages import JsonObject
from headrace.schemas.normalising import normalised
from headrace.schemas.output_schema import OutputSchema

__all__ = ["Backend", "Enforcement", "candidates", "chosen_backend", "foreseen"]

DEFAULT_BACKEND: Backend = "guidance"
UNDECLARED = "additionalProperties absent"  # the row of undeclared properties: xgrammar admits none

MAX_ROUNDS = 3  # of dropping what a backend refuses


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What a backend is given of an output schema, and what that holds. Every output is validated afterwards.

    `tier`: `enforced` (what is generated is accepted by the validator), `enforced_normalised` (the same, after a
    rewriting that keeps the schema's meaning), `relaxed:<keyword>,<keyword>` (these are left to the validation), or
    `validated_only` (nothing is enforced). `schema` is what the backend compiles; None with `validated_only`.
    `narrowed` are the keywords by which the backend forbids more than the schema does.
    """

    tier: str
    schema: JsonObject | bool | None
    narrowed: tuple[str, ...] = ()


def candidates(schema: OutputSchema, backend: Backend) -> Iterator[Enforcement]:
    """What to try with the backend, the best first; the first that it compiles counts.

    The last is `validated_only`. The canonical form is computed only when it is reached, and that may take much
    CPU and memory: iterate only in the process that has limits for these.
    """
    whole: JsonObject = {} if isinstance(schema.schema, bool) else schema.schema
    if schema.schema is not False:
        seen: list[JsonObject] = []
        for candidate in _tried(whole, backend):
            given = cast("JsonObject", candidate.schema)
            if not any(_is_same(given, other) for other in seen):
                seen.append(given)
                yield candidate
    yield Enforcement("validated_only", None)


def foreseen(schema: OutputSchema, backend: Backend) -> Enforcement | None:
    """How a schema will be held, as far as the data alone says it: wholly, as it is or with its formats as patterns.

    None: that is found out where it can be compiled, and rewritten, within limits.
    """
    if schema.schema is False:
        return None
    whole: JsonObject = {} if schema.schema is True else schema.schema
    plain = rewriting.without_annotations_as_formats(whole)
    adapted, narrowed = _adapted(plain, backend)
    for given, tier, by_adapting in ((plain, "enforced", ()), (adapted, "enforced_normalised", narrowed)):
        sites = _sites(given)
        if sites is not None and not _rows(sites, backend, "refused"):
            found = next(_whole(given, tier, by_adapting, backend), None)
            if found is not None:
                return found
    return None


def chosen_backend(schema: OutputSchema | None) -> tuple[Backend, str]:
    """The backend for a package with this output schema, and why.

    `xgrammar` where it is foreseen to hold all of the schema and forbids no more of it than guidance does (undeclared
    properties apart): its masks are much the faster ones. Else `guidance`, which ignores nothing that was tried.
    """
    if schema is None:
        return DEFAULT_BACKEND, "it ignores nothing that was tried; requests bring schemas of their own"
    quick, careful = foreseen(schema, "xgrammar"), foreseen(schema, "guidance")
    if quick is None:
        return DEFAULT_BACKEND, "xgrammar does not hold all of the output schema as it is"
    if careful is None:
        return "xgrammar", "it holds all of the output schema; guidance may not"
    more = set(quick.narrowed) - set(careful.narrowed) - {UNDECLARED}
    if more:
        return (
            DEFAULT_BACKEND,
            f"xgrammar forbids more than the output schema does by: {', '.join(sorted(more))}",
        )
    return "xgrammar", "it holds all of the output schema, and its masks are the faster ones"


def _tried(whole: JsonObject, backend: Backend) -> Iterator[Enforcement]:
    plain = rewriting.without_annotations_as_formats(whole)
    yield from _whole(plain, "enforced", (), backend)
    adapted, narrowed = _adapted(plain, backend)
    yield from _whole(adapted, "enforced_normalised", narrowed, backend)
    form = normalised(plain)
    if isinstance(form, dict):
        yield from _whole(form, "enforced_normalised", (), backend)
        fitting, narrowed_form = _adapted(form, backend)
        yield from _whole(fitting, "enforced_normalised", narrowed_form, backend)
        # What few keywords it takes to be compiled is less in the form that has the fewer keywords.
        yield from _relaxed(fitting, narrowed_form, backend)
    yield from _relaxed(adapted, narrowed, backend)


def _whole(
    schema: JsonObject, tier: str, narrowed: tuple[str, ...], backend: Backend
) -> Iterator[Enforcement]:
    """The schema with numbers bounded, and without; nothing if the backend would ignore some of it."""
    sites = _sites(schema)
    if sites is None or _rows(sites, backend, "ignored"):
        return
    forbids = (*narrowed, *(row.name for row in _rows(sites, backend, "narrowed")))
    bounded = rewriting.with_number_bounds(schema)
    if bounded != schema:
        yield Enforcement(tier, bounded, (*forbids, "number bounds"))
    yield Enforcement(tier, schema, forbids)


def _adapted(schema: JsonObject, backend: Backend) -> tuple[JsonObject, tuple[str, ...]]:
    """The schema with what the backend holds loosely put as patterns, and the keywords narrowed by it."""
    narrowed: list[str] = []
    loose = LOOSE_IN_GUIDANCE if backend == "guidance" else LOOSE_IN_XGRAMMAR
    known = GUIDANCE_FORMATS if backend == "guidance" else XGRAMMAR_FORMATS
    formats = {name for name in FORMAT_PATTERNS if name in loose or name not in known}
    draft = draft_of(schema)
    strict = rewriting.with_format_patterns(schema, {name for name in formats if is_format(name, draft)})
    if strict != schema:
        narrowed.append("format")
    held = rewriting.with_javascript_patterns(strict)
    if backend == "guidance":
        return held, tuple(narrowed)
    short = rewriting.with_length_patterns(held)
    if short != held:
        narrowed.append("minLength, maxLength")
    return rewriting.with_counted_optionals(short), tuple(narrowed)


def _relaxed(schema: JsonObject, narrowed: tuple[str, ...], backend: Backend) -> Iterator[Enforcement]:
    """The schema without the keywords that the backend refuses; those that it ignores are named as well."""
    given, dropped = _without_refused(schema, backend)
    sites = _sites(given)
    if sites is None:
        return
    ignored = {
        keyword
        for row in _rows(sites, backend, "ignored")
        for site in sites
        if row.is_in(site)
        for keyword in row.keywords
        if site.has(keyword)
    }
    names = ",".join(sorted(dropped | ignored))
    if not names:
        return
    forbids = (*narrowed, *(row.name for row in _rows(sites, backend, "narrowed")))
    # Lenient for what the table does not foresee. It passes over some keywords alone, so most are dropped here.
    final = rewriting.lenient(given) if backend == "guidance" else given
    bounded = rewriting.with_number_bounds(final)
    if bounded != final:
        yield Enforcement(f"relaxed:{names}", bounded, (*forbids, "number bounds"))
    yield Enforcement(f"relaxed:{names}", final, forbids)


def _without_refused(schema: JsonObject, backend: Backend) -> tuple[JsonObject, set[str]]:
    """The schema without what the backend refuses, and the keywords that it took."""
    dropped: set[str] = set()
    for _ in range(MAX_ROUNDS):  # what stands beside a dropped keyword may be refused without it
        faults: dict[str, set[str]] = {}
        for site in _sites(schema) or ():
            for row in SUPPORT:
                if row.verdict(backend) == "refused" and row.is_in(site):
                    faults.setdefault(site.pointer, set()).update(site.schema.keys() & set(row.keywords))
        if not any(faults.values()):
            break
        schema = rewriting.without(schema, faults)
        dropped.update(*faults.values())
    return schema, dropped


def _rows(sites: list[Site], backend: Backend, verdict: str) -> list[Support]:
    """The rows of the table with this verdict that are in the schema."""
    rows = [row for row in SUPPORT if row.verdict(backend) == verdict]
    return [row for row in rows if any(row.is_in(site) for site in sites)]


def _sites(schema: JsonObject) -> list[Site] | None:
    try:
        return list(sites_of(schema))
    except InvalidSchema:  # a rewriting has made it too large
        return None


def _is_same(one: JsonObject, other: JsonObject) -> bool:
    # As text, for the order counts: it is the order that a model writes in.
    return json.dumps(one) == json.dumps(other)
