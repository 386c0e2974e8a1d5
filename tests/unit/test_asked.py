"""Requests with one id: which of them runs, who is told, and what is known of the answer."""

from __future__ import annotations

from headrace.consumers.records import AnsweredId, TopicPartition
from headrace.schemas.messages import Location
from headrace.workers.asked import AskedIds
from headrace.workers.work import ReplyAddress

STANDARD, INTERACTIVE = TopicPartition("requests.standard", 3), TopicPartition("requests.interactive", 3)
RESULTS = "results"


def address(name: str) -> ReplyAddress:
    return ReplyAddress("replies", 0, name)


def lies_at(offset: int, topic: str = RESULTS, partition: int = 3) -> Location:
    return Location(topic=topic, partition=partition, offset=offset)


def test_the_first_with_an_id_runs_and_another_in_any_lane_waits_for_it() -> None:
    asked = AskedIds(10)
    assert asked.ask("a", STANDARD, 5, address("first")) is None
    seen = asked.ask("a", INTERACTIVE, 2, address("second"))
    assert seen is not None
    assert (seen.source, seen.offset, seen.answered, seen.location) == (STANDARD, 5, False, None)
    assert asked.ask("a", STANDARD, 9, None) is seen
    assert asked.ask("a", INTERACTIVE, 5, address("at the offset of the first")) is seen
    assert asked.answered("a", STANDARD, 5, lies_at(7)) == (
        address("second"),
        address("at the offset of the first"),
    )
    answered = asked.ask("a", INTERACTIVE, 10, address("late"))
    assert answered is not None
    assert (answered.answered, answered.location) == (True, lies_at(7))


def test_a_running_record_that_is_read_again_is_the_same_request_and_who_waits_stays() -> None:
    asked = AskedIds(10)
    asked.ask("a", STANDARD, 5, address("first"))
    asked.ask("a", STANDARD, 9, address("second"))
    assert asked.ask("a", STANDARD, 5, address("first")) is None
    assert asked.ask("a", STANDARD, 9, None) is not None
    assert asked.answered("a", STANDARD, 5, None) == (address("second"),)


def test_a_refused_request_answers_its_id_only_where_no_other_runs() -> None:
    asked = AskedIds(10)
    asked.ask("a", STANDARD, 5, None)
    asked.ask("a", STANDARD, 6, address("second"))
    assert asked.answered("a", INTERACTIVE, 0, lies_at(1)) == ()
    seen = asked.ask("a", STANDARD, 7, None)
    assert seen is not None
    assert not seen.answered, "its own answer is to come"
    assert asked.answered("a", STANDARD, 5, lies_at(2)) == (address("second"),)
    assert asked.answered("b", STANDARD, 8, lies_at(3)) == ()
    for request_id, offset in (("a", 2), ("b", 3)):
        found = asked.ask(request_id, STANDARD, 10, None)
        assert found is not None
        assert found.location == lies_at(offset)


def test_a_result_that_lies_nowhere_known_still_is_an_answer() -> None:
    asked = AskedIds(10)
    asked.ask("a", STANDARD, 5, None)
    asked.answered("a", STANDARD, 5, None)
    seen = asked.ask("a", STANDARD, 6, None)
    assert seen is not None
    assert (seen.answered, seen.location) == (True, None)


def test_results_of_several_topics_keep_their_places() -> None:
    asked = AskedIds(10)
    places = [
        lies_at(0),
        lies_at(2**43, "tenant.results", 0),
        lies_at(4, "tenant.results", 1),
        lies_at(1),
    ]
    for number, place in enumerate(places):
        asked.ask(str(number), STANDARD, number, None)
        asked.answered(str(number), STANDARD, number, place)
    seen = [asked.ask(str(number), STANDARD, 10 + number, None) for number in range(4)]
    assert [each.location for each in seen if each] == places


def test_what_an_earlier_owner_answered_is_remembered_the_newest_last() -> None:
    asked = AskedIds(2)
    ids = [("forgotten", 0), ("a", 1), ("b", 2), ("c", 3), ("a", 5)]
    asked.remember([AnsweredId(*each, ok=True) for each in ids], RESULTS, 3)
    found = {name: asked.ask(name, STANDARD, 0, None) for name in ("a", "c", "forgotten", "new")}
    assert {name: each and each.location for name, each in found.items()} == {
        "a": lies_at(5),
        "c": lies_at(3),
        "forgotten": None,
        "new": None,
    }


def test_what_ran_from_a_lane_that_went_may_run_again_and_the_other_lanes_run_on() -> None:
    asked = AskedIds(10)
    asked.ask("a", STANDARD, 5, None)
    asked.ask("a", INTERACTIVE, 1, address("waits in vain"))
    asked.ask("b", INTERACTIVE, 2, None)
    asked.ask("b", STANDARD, 6, address("waits"))
    asked.ask("c", STANDARD, 7, None)
    asked.answered("c", STANDARD, 7, lies_at(0))
    asked.forget(STANDARD)
    assert asked.ask("a", INTERACTIVE, 3, None) is None, "it runs in place of the other"
    assert asked.ask("a", STANDARD, 5, None) is not None
    assert asked.answered("a", INTERACTIVE, 3, lies_at(1)) == ()
    assert asked.answered("b", INTERACTIVE, 2, lies_at(2)) == (address("waits"),)
    assert asked.ask("c", STANDARD, 7, None) is not None, "what was answered stays so"


def test_what_is_in_a_transaction_when_its_lane_goes_is_not_run_beside_it() -> None:
    asked = AskedIds(10)
    for offset, name in enumerate("abc"):
        asked.ask(name, STANDARD, offset, None)
    asked.forget(STANDARD, in_transaction={0, 1})
    assert asked.ask("a", INTERACTIVE, 0, address("waits")) is not None
    assert asked.ask("c", INTERACTIVE, 1, None) is None
    assert asked.answered("a", STANDARD, 0, lies_at(4)) == (address("waits"),)
    asked.forget(STANDARD)  # the other was not committed
    assert asked.ask("b", INTERACTIVE, 2, None) is None
    seen = asked.ask("a", INTERACTIVE, 3, None)
    assert seen is not None
    assert seen.location == lies_at(4)


def test_without_a_window_only_what_runs_is_known() -> None:
    asked = AskedIds(0)
    asked.remember([AnsweredId("a", 1, ok=True)], RESULTS, 3)
    assert asked.ask("a", STANDARD, 0, None) is None
    assert asked.ask("a", STANDARD, 1, address("second")) is not None
    assert asked.answered("a", STANDARD, 0, lies_at(2)) == (address("second"),)
    assert asked.ask("a", STANDARD, 2, None) is None


# --- replays ---


def test_a_replay_runs_unless_an_ok_is_known_and_again_runs_whatever_is_known() -> None:
    asked = AskedIds(10)
    asked.remember([AnsweredId("failed", 1, ok=False), AnsweredId("ok", 2, ok=True)], RESULTS, 3)
    assert asked.ask("failed", STANDARD, 0, None) is not None, "for whoever sends it again it is answered"
    assert asked.ask("failed", STANDARD, 1, None, "unless_ok") is None
    seen = asked.ask("ok", STANDARD, 2, None, "unless_ok")
    assert seen is not None
    assert (seen.answered, seen.location) == (True, lies_at(2))
    assert asked.ask("ok", STANDARD, 3, None, "again") is None


def test_no_replay_runs_beside_what_runs() -> None:
    asked = AskedIds(10)
    asked.ask("a", STANDARD, 0, None)
    for offset, replay in ((1, "unless_ok"), (2, "again")):
        seen = asked.ask("a", STANDARD, offset, address(replay), replay)
        assert seen is not None
        assert not seen.answered
    assert asked.answered("a", STANDARD, 0, lies_at(1), "failed") == (address("unless_ok"), address("again"))
    assert asked.ask("a", STANDARD, 3, None, "unless_ok") is None


def test_what_comes_after_an_ok_does_not_make_room_for_a_replay() -> None:
    asked = AskedIds(10)
    asked.ask("a", STANDARD, 0, None)
    asked.answered("a", STANDARD, 0, lies_at(1), "ok")
    asked.ask("a", STANDARD, 1, None, "again")
    asked.answered("a", STANDARD, 1, lies_at(2), "failed")
    rebuilt = AskedIds(10)
    rebuilt.remember([AnsweredId("a", 1, ok=True), AnsweredId("a", 2, ok=False)], RESULTS, 3)
    for known in (asked, rebuilt):
        seen = known.ask("a", STANDARD, 2, None, "unless_ok")
        assert seen is not None
        assert seen.location == lies_at(1), "its good answer"


def test_a_replay_that_is_ok_after_a_failure_is_the_answer_from_then_on() -> None:
    asked = AskedIds(10)
    asked.remember([AnsweredId("a", 1, ok=False)], RESULTS, 3)
    asked.ask("a", STANDARD, 0, None, "unless_ok")
    asked.answered("a", STANDARD, 0, lies_at(7), "ok")
    for replay in ("no", "unless_ok"):
        seen = asked.ask("a", STANDARD, 1, None, replay)
        assert seen is not None
        assert seen.location == lies_at(7)


def test_an_ok_whose_place_is_not_known_is_told_from_a_failure_whose_place_is_not() -> None:
    asked = AskedIds(10)
    for number, status in enumerate(("ok", "failed")):
        asked.ask(status, STANDARD, number, None)
        asked.answered(status, STANDARD, number, None, status)
    assert asked.ask("failed", STANDARD, 5, None, "unless_ok") is None
    seen = asked.ask("ok", STANDARD, 6, None, "unless_ok")
    assert seen is not None
    assert (seen.answered, seen.location) == (True, None)
