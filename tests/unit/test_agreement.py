"""How far two versions say the same, and which answers are put side by side."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.ops.rollouts import agreement as agreement_module
from headrace.ops.rollouts.agreement import (
    ABSENT,
    OTHER_FIELDS,
    SHOWN,
    TOOL_CALLS,
    WHOLE,
    Agreement,
    Example,
    leaves,
    same,
    similarity,
)
from headrace.ops.rollouts.pairing import Pairing
from headrace.schemas.messages import (
    FunctionCall,
    Output,
    Provenance,
    Result,
    Status,
    Timings,
    ToolCall,
    Usage,
)


def output(value: Any = None, text: str = "", **more: Any) -> Output:
    return Output(text=text, finish_reason="stop", value=value, **more)


def a_result(request_id: str, version: str, status: Status = "ok", *, offset: int = 0, **more: Any) -> Result:
    source = Provenance(
        model="tagger",
        version=version,
        contract=1,
        engine="simulated",
        engine_version="1",
        slot="slot-1",
        source_topic="t",
        source_partition=0,
        source_offset=offset,
    )
    return Result(id=request_id, status=status, provenance=source, **more)


# --- by field -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (False, False, True),
        ("1", 1, False),
        (None, None, True),
        (None, False, False),
        ([1, [True]], [1.0, [True]], True),
        ([1, [True]], [1, [1]], False),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ({"a": 0}, {"a": False}, False),
        ([], {}, False),
    ],
)
def test_values_are_equal_as_json_has_it(one: Any, other: Any, equal: bool) -> None:
    assert same(one, other) is equal
    assert same(other, one) is equal


def test_objects_are_gone_into_and_arrays_are_not() -> None:
    live = {"a": {"b": 1, "c/d": [1, 2]}, "e": {}, "f": 3}
    shadow = {"a": {"b": 2, "c/d": [1, 2]}, "e": {}, "g": {"h": 4}}
    found = Agreement(3)
    found.add("r", [output(live)], [output(shadow)])
    assert {name: (each.compared, each.equal) for name, each in found.fields.items()} == {
        "/a/b": (1, 0),
        "/a/c~1d": (1, 1),
        "/e": (1, 1),
        "/f": (1, 0),
        "/g": (1, 0),
    }
    assert found.fields["/f"].examples == [Example("r", "3", ABSENT)]
    assert found.fields["/g"].examples == [Example("r", ABSENT, '{"h": 4}')]
    assert (found.values.compared, found.values.equal) == (1, 0)


def test_a_value_that_is_no_object_is_one_field() -> None:
    found = Agreement(1)
    found.add("r", [output("a")], [output("a")])
    found.add("s", [output(["a"])], [output({"a": 1})])
    assert {name: each.part for name, each in found.fields.items()} == {WHOLE: 0.5}


def test_choices_are_compared_one_by_one() -> None:
    found = Agreement(1)
    found.add("r", [output({"a": 1}), output({"a": 2})], [output({"a": 1}), output({"a": 3})])
    assert found.fields["/a"].part == 0.5


def test_so_many_examples_are_kept_of_each_field_and_each_is_cut_short() -> None:
    found = Agreement(2)
    for number in range(5):
        found.add(f"r{number}", [output({"a": "x" * 10_000, "b": 1})], [output({"a": "y", "b": 1})])
    assert [each.request_id for each in found.fields["/a"].examples] == ["r0", "r1"]
    assert len(found.fields["/a"].examples[0].live) == SHOWN
    assert found.fields["/b"].examples == []


def test_there_are_only_so_many_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement_module, "MOST_FIELDS", 3)
    found = Agreement(1)
    for number in range(6):
        found.add("r", [output({str(number): 1})], [output({str(number): number % 2})])
    assert set(found.fields) == {"/0", "/1", "/2", OTHER_FIELDS}
    assert (found.fields[OTHER_FIELDS].compared, found.fields[OTHER_FIELDS].equal) == (3, 2)


def test_text_is_compared_as_a_whole_and_word_by_word() -> None:
    found = Agreement(1)
    found.add("r", [output(text="a b c d")], [output(text="a b c d")])
    found.add("s", [output(text="a b c d")], [output(text="a b x d")])
    found.add("t", [output(text="a b c d")], [output(text="e f g h")])
    assert (found.texts.compared, found.texts.equal) == (3, 1)
    assert found.median_similarity == 0.75
    assert not found.fields


def test_long_texts_are_compared_by_their_beginnings() -> None:
    words = " ".join(str(number) for number in range(agreement_module.COMPARED_WORDS))
    assert similarity(f"{words} a b", f"{words} c d") == 1.0
    assert similarity(f"a {words}", f"b {words}") < 1.0


def test_calls_of_tools_are_compared_by_what_they_ask_for() -> None:
    def calling(id_: str, arguments: str) -> list[Output]:
        call = ToolCall(id=id_, function=FunctionCall(name="f", arguments=arguments))
        return [output(tool_calls=[call])]

    found = Agreement(1)
    found.add("r", calling("1", '{"a": 1, "b": 2}'), calling("2", '{"b":2,"a":1}'))
    found.add("s", calling("1", '{"a": 1}'), calling("1", '{"a": 2}'))
    found.add("t", calling("1", "{"), [output(text="no call")])
    assert (found.fields[TOOL_CALLS].compared, found.fields[TOOL_CALLS].equal) == (3, 1)
    assert found.texts.compared == 0


def test_leaves_of_two_objects_come_in_the_order_of_their_names() -> None:
    assert [path for path, _, _ in leaves({"b": 1, "a": {"c": 1}}, {"d": 1, "a": {"c": 2}})] == [
        ("a", "c"),
        ("b",),
        ("d",),
    ]


# --- which answers ------------------------------------------------------------------------------------------------


def test_only_what_both_have_answered_is_counted() -> None:
    pairing = Pairing(10, 3)
    for each in ("a", "b", "c"):
        pairing.hold(a_result(each, "4"))
    met = [pairing.meet(a_result(each, "3")) for each in ("x", "a", "b", "a")]
    assert met == [False, True, True, False]
    assert (pairing.read, pairing.pairs, pairing.without_partner) == (3, 2, 1)
    assert (pairing.live.versions, pairing.shadow.versions) == ({"3": 2}, {"4": 2})


def test_the_newest_are_held_and_it_is_said_how_many_were_left_out() -> None:
    pairing = Pairing(2, 3)
    put_out = [pairing.hold(a_result(each, "4")) for each in ("a", "b", "a", "c", "d")]
    assert put_out == [None, None, None, "b", "a"]
    assert (pairing.left_out, pairing.repeated, pairing.without_partner) == (2, 1, 2)
    assert [pairing.meet(a_result(each, "3")) for each in "abcd"] == [False, False, True, True]


def test_what_the_shadow_gave_up_is_counted_apart() -> None:
    pairing = Pairing(2, 3)
    pairing.hold(a_result("a", "4", "expired"))
    pairing.hold(a_result("b", "4", "cancelled"))
    assert (pairing.gave_up, pairing.without_partner) == ({"expired": 1, "cancelled": 1}, 0)
    assert not pairing.meet(a_result("a", "3"))


def test_the_rejection_of_another_message_is_no_answer_to_the_same_id() -> None:
    pairing = Pairing(2, 3)
    pairing.hold(a_result("a", "4", offset=7))
    assert not pairing.meet(a_result("a", "3", "rejected", offset=6))
    assert pairing.meet(a_result("a", "3", "ok", offset=7))
    pairing.hold(a_result("b", "4", offset=8))
    assert pairing.meet(a_result("b", "3", "rejected", offset=8)), (
        "live versions reject what the shadow serves"
    )
    assert pairing.same_status == 1


def test_each_side_has_its_validity_latency_and_tokens() -> None:
    pairing = Pairing(10, 3)
    statuses: list[Status] = ["ok", "ok", "invalid_output", "failed", "rejected"]
    for number, status in enumerate(statuses):
        timings = Timings(queued_ms=900, total_ms=1000)
        pairing.hold(a_result(str(number), "4", status, timings=timings, usage=Usage(completion_tokens=30)))
        pairing.meet(a_result(str(number), "3", usage=Usage(completion_tokens=10)))
    told = pairing.shadow.as_json()
    assert told["statuses"] == {"ok": 2, "invalid_output": 1, "failed": 1, "rejected": 1}
    assert (told["failed"], told["valid"], told["tokens"]) == (0.25, pytest.approx(2 / 3), 30)
    assert told["p95_ms"] == pytest.approx(100, rel=0.03), "from its admission, not from its arrival"
    assert (pairing.live.valid, pairing.live.tokens) == (1, 10)
    assert pairing.as_json()["same_status"] == 0.4


def test_nothing_is_no_number() -> None:
    told = Pairing(1, 1).as_json()
    assert told["same_status"] is None
    assert told["live"]["valid"] is None
    assert told["texts"]["median_similarity"] is None
