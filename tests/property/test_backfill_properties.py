"""A job against every world: killed, out of order, forgotten by retention, cancelled, and each row once in the end."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from property.backfill_mutants import BUGS
from property.backfill_stand_ins import expected
from property.backfill_world import World, rows_written
from property_examples import EXAMPLES

from headrace.consumers.backfill_jobs import Order
from headrace.producers.backfill.breaker import MaxFailures
from headrace.producers.backfill.rounds import begin_again, rows_to_redo
from headrace.producers.backfill.run import ROWS_OF_UNKNOWN_COST

ROWS = st.lists(
    st.tuples(
        st.sampled_from(("good", "good", "good", "good", "fails", "flaky", "refused", "bad", "unreadable")),
        st.integers(0, 6),
    ),
    min_size=1,
    max_size=30,
)
ORDINARY = (*["step"] * 3, *["serve"] * 6, *["deliver"] * 4, "look", "look", "wait")
GONE = ("freeze", *["come_back"] * 4)
OUTAGE = ("open_transaction", "sends_fail", "late_acks", "acks")
TROUBLE = (
    "kill",
    "kill_before_save",
    "kill_after_save",
    "kill_before_replacing",
    "pause",
    "cancel",
    *GONE,
    *OUTAGE,
)
HAPPENINGS = st.lists(st.tuples(st.sampled_from((*ORDINARY, *TROUBLE)), st.integers(0, 50)), max_size=80)
# A job that is cancelled and killed amid it may have a request run twice: then a late answer is one nobody asked for.
NOT_CANCELLED = HAPPENINGS.map(lambda them: [each for each in them if each[0] != "cancel"])
FORGETFUL = st.lists(
    st.tuples(
        st.sampled_from((*["serve"] * 5, *["deliver"] * 3, "step", "look", "forget", "kill", "wait")),
        st.integers(0, 50),
    ),
    max_size=60,
)
ENOUGH = 400  # turns in which nothing happens


@st.composite
def worlds(draw: st.DrawFn) -> World:
    return World(draw(ROWS), draw(st.integers(1, 7)), draw(st.integers(1, 3)), draw(st.booleans()))


def happen(world: World, happenings: list[tuple[str, int]]) -> None:
    for what, number in happenings:
        if world.is_done:
            return
        match what:
            case "step":
                world.step()
            case "serve":
                world.serve(number)
            case "deliver":
                world.deliver(1 + number % 4)
            case "look":
                world.look()
            case "wait":
                world.now += number
            case "kill":
                world.kill()
            case "kill_before_save":
                world.kill_before_save = True
            case "kill_after_save":
                world.kill_after_save = True
            case "kill_before_replacing":
                world.kill_before_replacing = True
            case "freeze":
                world.freeze()
            case "come_back":
                world.come_back(number)
            case "sends_fail":
                world.sends_that_fail = number % 7
            case "open_transaction":
                world.open_transaction(number)
            case "late_acks":
                world.acks_are_late = True
            case "acks":
                world.acks_are_late = False
                world.acknowledge()
            case "forget":
                world.forget(number)
            case "pause":
                world.order_given = Order(order="pause", by="me", at=0)
            case _:
                world.order_given = Order(order="cancel", by="me", at=0)
    world.kill_before_save = world.kill_after_save = world.kill_before_replacing = False
    if world.order_given is not None and world.order_given.order == "pause":
        world.order_given = None


def check_rows(world: World, *, healed: bool = False) -> None:
    found = rows_written(world)
    assert sorted(found) == list(range(len(world.kinds)))
    for row, (kind, value) in enumerate(world.kinds):
        assert (found[row].status, found[row].value) == expected(kind, value, healed), f"row {row}, {kind}"
    end = world.ends[-1]
    assert sum(end.view.statuses.values()) == len(world.kinds) == end.view.settled


def each_row_is_there_once(world: World, happenings: list[tuple[str, int]]) -> None:
    happen(world, happenings)
    world.calm(ENOUGH)
    check_rows(world)
    if not any(what == "cancel" for what, _ in happenings):
        assert max(world.generations.values(), default=1) == 1, "a request was generated twice"
    kills = sum(what not in ("step", "serve", "deliver", "look", "wait", "pause") for what, _ in happenings)
    asked = {f"{kind} {value}" for kind, value in world.kinds if kind not in ("bad", "unreadable")}
    if world.dedupe and not kills:
        good = {text for text in asked if text.startswith("good")}
        texts = [request for request in world.generations if "good" in _prompt(world, request)]
        assert len(texts) == len(good), "what is the same was asked twice"


def _prompt(world: World, request_id: str) -> str:
    return next(
        each.request.prompt or ""
        for lane in world.lanes
        for each in lane.asked
        if each.request.id == request_id
    )


@given(worlds(), HAPPENINGS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_whatever_happens_each_row_is_there_once_and_generated_once(
    world: World, happenings: list[tuple[str, int]]
) -> None:
    each_row_is_there_once(world, happenings)


@given(worlds(), FORGETFUL)
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_row_whose_answer_is_gone_is_asked_again(world: World, happenings: list[tuple[str, int]]) -> None:
    a_lost_answer_is_asked_for_again(world, happenings)


def a_lost_answer_is_asked_for_again(world: World, happenings: list[tuple[str, int]]) -> None:
    happen(world, happenings)
    world.calm(ENOUGH)
    check_rows(world)
    if not world.took_from_results:
        assert max(world.generations.values(), default=1) == 1


@given(worlds(), NOT_CANCELLED, NOT_CANCELLED, st.sampled_from(("failed", "rejects")))
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_round_for_the_failed_leaves_everything_else_as_it_is(
    world: World, first: list[tuple[str, int]], second: list[tuple[str, int]], redo: str
) -> None:
    a_round_asks_for_its_rows_alone(world, first, second, redo)


def a_round_asks_for_its_rows_alone(
    world: World, first: list[tuple[str, int]], second: list[tuple[str, int]], redo: str
) -> None:
    happen(world, first)
    world.calm(ENOUGH)
    before = rows_written(world)
    spent = world.state.tokens
    world.generations.clear()
    world.flaky_heal_from = 0
    concerned = [
        row
        for row, each in before.items()
        if each.status != "ok" and (each.status == "rejected") == (redo == "rejects")
    ]
    assert rows_to_redo(world.state, redo) == len(concerned)
    world.state = begin_again(world.state, redo)
    world.ends.clear()
    world.start()
    happen(world, second)
    world.calm(ENOUGH)
    check_rows(world, healed=redo == "failed")
    after = rows_written(world)
    for row in before.keys() - set(concerned):
        assert after[row] == before[row]
    anew = [after[row] for row in concerned if after[row].asked]
    assert world.state.tokens == (
        spent[0] + sum(each.prompt_tokens for each in anew),
        spent[1] + sum(each.completion_tokens for each in anew),
    ), "what a bad answer has cost stays spent"
    asked_again = {int(request.split(".")[1]) for request in world.generations}
    assert asked_again <= set(concerned)
    assert max(world.generations.values(), default=1) == 1


@given(worlds(), HAPPENINGS, st.integers(1, 200))
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_token_budget_is_passed_by_no_more_than_the_first_rows(
    world: World, happenings: list[tuple[str, int]], budget: int
) -> None:
    """What a row costs is not known before one is answered; a killed process may have asked for as many."""
    world.token_budget = budget
    world.kill()
    happen(world, happenings)
    for turn in range(ENOUGH):
        if world.is_done or any(
            end.error is not None and end.error.code == "budget_spent" for end in world.ends
        ):
            break
        world.acknowledge()
        world.end_transactions()
        world.serve(turn)
        world.deliver(3)
        world.look()
        world.now += 4
    else:
        raise AssertionError("neither done nor out of budget")
    spent = 5 * sum(world.generations.values())
    kills = sum(what not in ("step", "serve", "deliver", "look", "wait", "pause") for what, _ in happenings)
    assert spent <= budget + 5 * ROWS_OF_UNKNOWN_COST * (1 + kills)


@given(st.integers(0, 40), st.integers(1, 2000), st.integers(0, 2000))
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_share_is_of_the_first_thousand_rows(percent: int, rows: int, failed: int) -> None:
    from headrace.producers.backfill.breaker import Breaker

    breaker = Breaker(MaxFailures(share=percent / 100))
    for row in range(rows):
        breaker.begin(row)
    failed = min(failed, rows)
    for row in range(failed):
        breaker.fail(row)
    in_first = min(failed, 1000) > percent / 100 * 1000
    in_all = rows > 1000 and failed > percent / 100 * rows
    assert (breaker.why is not None) == (in_first or in_all)


LAWS = {
    "each_row": lambda: given(worlds(), HAPPENINGS)(each_row_is_there_once),
    "forgotten": lambda: given(worlds(), FORGETFUL)(a_lost_answer_is_asked_for_again),
    "round": lambda: given(worlds(), NOT_CANCELLED, NOT_CANCELLED, st.sampled_from(("failed", "rejects")))(
        a_round_asks_for_its_rows_alone
    ),
}


@pytest.mark.parametrize("name", sorted(BUGS))
def test_every_deliberate_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    law, apply = BUGS[name]
    apply(monkeypatch)
    check = settings(max_examples=3_000, phases=(Phase.generate,), database=None, deadline=None)(LAWS[law]())
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is that is wrong now
        check()
