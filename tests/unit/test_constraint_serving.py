"""What serving makes of how a constraint is held: the job, the provenance, and the package's own schema."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from packages import TAGS_SCHEMA, a_package
from serving_parts import Sent, a_work

from headrace.schemas.codec import Codec
from headrace.schemas.enforcement import Enforcement
from headrace.schemas.errors import InvalidSchema, PackageError, SchemaTooComplex
from headrace.schemas.messages import OutputConstraint
from headrace.workers.answers import Served
from headrace.workers.cancels import Cancels
from headrace.workers.engine import Delta, Generation, GenerationJob
from headrace.workers.replying import ReplySender
from headrace.workers.serving import Serving, own_enforcement
from headrace.workers.simulated_engine import SimulatedEngine, SimulatedProfile

ASKED = '{"id":"a","prompt":"x","output":{"json_schema":{"type":"integer","not":{"const":7}}}}'
OWN = '{"id":"a","variables":{"title":"Heat"}}'


class Engine(SimulatedEngine):
    """Says of each constraint what it is told to, and keeps the jobs that it is given."""

    def __init__(self, *found: Enforcement | InvalidSchema) -> None:
        super().__init__(SimulatedProfile(time_scale=0, max_model_len=256))
        self.found = list(found)
        self.jobs: list[GenerationJob] = []

    async def enforcement_of(self, constraint: OutputConstraint) -> Enforcement:
        found = self.found.pop(0)
        if isinstance(found, InvalidSchema):
            raise found
        return found

    def generate(self, job: GenerationJob) -> AsyncIterator[Delta | Generation]:
        self.jobs.append(job)
        return super().generate(job)


def serve(directory: Path, engine: Engine, value: str, *, own: Enforcement | None = None) -> Served:
    replies = ReplySender(Sent(), Codec(), model="tagger")
    package = a_package(directory, output=TAGS_SCHEMA if value == OWN else None)

    async def run() -> Served:
        await engine.start()
        serving = Serving(package=package, engine=engine, replies=replies, cancels=Cancels(), own=own)
        return await serving.serve(a_work(value))

    return asyncio.run(run())


def test_the_backend_gets_the_schema_that_it_can_hold_and_the_result_names_the_tier(tmp_path: Path) -> None:
    engine = Engine(Enforcement("relaxed:not", {"type": "integer"}))
    served = serve(tmp_path, engine, ASKED)
    assert engine.jobs[0].constraint == OutputConstraint(json_schema={"type": "integer"})
    assert served.tier == "relaxed:not"


def test_where_all_is_left_to_validation_the_backend_gets_nothing_and_the_output_is_validated(
    tmp_path: Path,
) -> None:
    engine = Engine(Enforcement("validated_only", None))
    served = serve(tmp_path, engine, ASKED)
    assert engine.jobs[0].constraint is None
    assert (served.status, served.tier) == ("invalid_output", "validated_only")


@pytest.mark.parametrize("kind", [InvalidSchema, SchemaTooComplex])
def test_what_cannot_be_held_is_rejected_before_the_engine_sees_it(
    tmp_path: Path, kind: type[InvalidSchema]
) -> None:
    engine = Engine(kind("cannot be held", path="/output/json_schema/not"))
    served = serve(tmp_path, engine, ASKED)
    assert served.status == "rejected"
    assert served.error is not None
    assert (served.error.code, served.error.path) == (kind.code, "/output/json_schema/not")
    assert engine.jobs == []


def test_the_packages_own_schema_is_asked_for_once(tmp_path: Path) -> None:
    engine = Engine()
    served = serve(tmp_path, engine, OWN, own=Enforcement("enforced", TAGS_SCHEMA))
    assert (served.status, served.tier) == ("ok", "enforced")


def test_without_a_constraint_there_is_no_tier(tmp_path: Path) -> None:
    assert serve(tmp_path, Engine(), '{"id":"a","prompt":"x"}').tier is None


def test_a_package_whose_own_schema_cannot_be_held_says_so_with_its_line(tmp_path: Path) -> None:
    package = a_package(tmp_path, output=TAGS_SCHEMA)
    engine = Engine(InvalidSchema("cannot be held", path="/output/json_schema/not"))
    with pytest.raises(PackageError, match="cannot be held") as caught:
        asyncio.run(own_enforcement(package, engine))
    assert caught.value.key == "output"
    assert caught.value.line is not None


def test_a_package_is_not_refused_for_one_slow_answer(tmp_path: Path) -> None:
    package = a_package(tmp_path, output=TAGS_SCHEMA)
    slow, held = SchemaTooComplex("slow"), Enforcement("enforced", TAGS_SCHEMA)
    assert asyncio.run(own_enforcement(package, Engine(slow, slow, held))) == held
    with pytest.raises(PackageError):
        asyncio.run(own_enforcement(package, Engine(slow, slow, slow)))
    assert asyncio.run(own_enforcement(a_package(tmp_path / "free"), Engine())) is None
