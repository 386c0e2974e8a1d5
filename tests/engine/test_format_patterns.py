"""The patterns that stand for formats are held by both backends: what these admit, the validator accepts."""

from __future__ import annotations

import contextlib

import pytest

from headrace.ops.bench.tiny_model import tiny_model
from headrace.schemas.enforcement import Backend, candidates
from headrace.schemas.format_patterns import FORMAT_PATTERNS
from headrace.schemas.messages import OutputConstraint
from headrace.schemas.output_schema import OutputSchema
from headrace.schemas.settings import Settings
from headrace.workers.constraint_grammars import (
    Compiled,
    Compiler,
    Refused,
    Vocabulary,
    compiler_of,
    kind_and_text,
    walks,
)


@pytest.fixture(scope="module")
def compilers(needs_vllm: None) -> dict[Backend, Compiler]:
    vocabulary = Vocabulary.load(str(tiny_model(Settings.from_environment().cache_dir / "models")), None)
    backends: tuple[Backend, ...] = ("guidance", "xgrammar")
    return {backend: compiler_of(backend, vocabulary) for backend in backends}


def first_that_compiles(compiler: Compiler, schema: OutputSchema, backend: Backend) -> tuple[str, Compiled]:
    for candidate in candidates(schema, backend):
        with contextlib.suppress(Refused):
            constraint = OutputConstraint(json_schema=candidate.schema)
            return candidate.tier, compiler.compile(*kind_and_text(constraint))
    raise AssertionError("none compiles")


@pytest.mark.parametrize("backend", ["guidance", "xgrammar"])
@pytest.mark.parametrize("name", sorted(FORMAT_PATTERNS))
def test_a_format_is_held_wholly_and_what_is_generated_is_of_that_format(
    compilers: dict[Backend, Compiler], name: str, backend: Backend
) -> None:
    compiler = compilers[backend]
    schema = OutputSchema.parse({"type": "string", "format": name})
    tier, compiled = first_that_compiles(compiler, schema, backend)
    assert tier in ("enforced", "enforced_normalised")
    texts = list(walks(compiled, compiler.vocabulary))
    assert texts or name == "iri"  # whose scheme hardly ever ends by chance
    for text in texts:
        schema.check(text)
