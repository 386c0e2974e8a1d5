"""A part of a later round takes the former one's place, whenever the process is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backfill_rows import KEPT, numbered, ok, places_in

from headrace.producers.backfill.assembly import Places
from headrace.producers.backfill.columns import OutputColumns
from headrace.producers.backfill.failures import OutputFailed
from headrace.producers.backfill.folder import Folder
from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.output_parts import TableOutput
from headrace.producers.backfill.replacing import put_all_in_place
from headrace.producers.backfill.state import WrittenPart

COLUMNS = OutputColumns.of(KEPT, None)
CHUNK = numbered(3)
BAD = Outcome("failed", code="engine_error", error="it broke", prompt_tokens=3, completion_tokens=1)
FORMER = [ok("a"), BAD, BAD]
REJECTS = "rejects-000000.jsonl"


class Killed(Exception):
    """The process ends here."""


def output_in(places: Places) -> TableOutput:
    return TableOutput(places, COLUMNS, "jsonl", {"job": "j", "model": "m", "contract": "1"})


def statuses(places: Places, part: WrittenPart) -> list[str]:
    """Of the rows as a reader of the part finds them. Raises OutputFailed where it is not what the state says."""
    return [each.status for each in output_in(places).earlier(part)]


def rejects(places: Places) -> int:
    return (places.rejects.read(REJECTS) or b"").count(b"\n")


def test_until_it_is_put_in_place_readers_find_the_former_part(tmp_path: Path) -> None:
    places = places_in(tmp_path, "tags.jsonl")
    former = output_in(places).write(CHUNK, FORMER, 0)
    assert former.bad_costs == {"failed": [6, 2]}
    part = output_in(places).write(CHUNK, [ok("a"), ok("b"), BAD], 1)
    assert (statuses(places, former), rejects(places)) == (["ok", "failed", "failed"], 2)
    output_in(places).put_in_place(part)
    assert (statuses(places, part), rejects(places)) == (["ok", "ok", "failed"], 1)
    assert places.waiting.names() == []


def test_what_the_state_does_not_name_is_taken_away_and_the_former_part_stays(tmp_path: Path) -> None:
    places = places_in(tmp_path, "tags.jsonl")
    former = output_in(places).write(CHUNK, FORMER, 0)
    output_in(places).write(CHUNK, [ok("a"), ok("b"), ok("c")], 1)
    put_all_in_place(places, [former])
    assert (statuses(places, former), rejects(places)) == (["ok", "failed", "failed"], 2)
    assert places.waiting.names() == []


def test_who_has_lost_the_job_leaves_the_part_that_waits_for_its_successor_to_name_it(tmp_path: Path) -> None:
    places = places_in(tmp_path, "tags.jsonl")
    output_in(places).write(CHUNK, FORMER, 0)
    lost = output_in(places).write(CHUNK, [ok("a"), ok("b"), BAD], 1)
    put_all_in_place(places, [lost])  # by the successor, who goes on to ask for the last row again
    successors = output_in(places).write(CHUNK, [ok("a"), ok("b"), ok("c")], 2)
    output_in(places).put_in_place(lost)
    output_in(places).put_in_place(successors)
    assert (statuses(places, successors), rejects(places)) == (["ok", "ok", "ok"], 0)


@pytest.mark.parametrize("anew", [[ok("a"), ok("b"), BAD], [ok("a"), ok("b"), ok("c")]], ids=["one", "none"])
@pytest.mark.parametrize("operations", range(6))
def test_killed_at_any_step_it_is_in_place_when_the_job_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operations: int, anew: list[Outcome]
) -> None:
    places = places_in(tmp_path, "tags.jsonl")
    output_in(places).write(CHUNK, FORMER, 0)
    part = output_in(places).write(CHUNK, anew, 1)
    with monkeypatch.context() as patch:
        _kill_after(patch, operations)
        try:
            put_all_in_place(places, [part])
        except Killed:
            pass
        else:
            assert operations >= 4, "it was killed"
    put_all_in_place(places, [part])
    assert statuses(places, part) == [each.status for each in anew]
    assert rejects(places) == sum(each.status != "ok" for each in anew)
    assert places.waiting.names() == []


def _kill_after(patch: pytest.MonkeyPatch, operations: int) -> None:
    left = operations

    def counted(do: Callable[..., Any]) -> Callable[..., Any]:
        def done(*arguments: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return do(*arguments)

        return done

    for name in ("write", "delete"):
        patch.setattr(Folder, name, counted(getattr(Folder, name)))


def test_a_part_that_was_changed_by_others_is_still_told(tmp_path: Path) -> None:
    places = places_in(tmp_path, "tags.jsonl")
    former = output_in(places).write(CHUNK, FORMER, 0)
    places.parts.write(former.file, b"{}\n")
    put_all_in_place(places, [former])
    with pytest.raises(OutputFailed, match="is not as it was written"):
        statuses(places, former)
