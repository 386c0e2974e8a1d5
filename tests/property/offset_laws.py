"""Laws of the encoding and of `room` and `fits`, as functions of generated values."""

from __future__ import annotations

from hypothesis import strategies as st

from headrace.consumers import offset_encoding
from headrace.consumers.offset_encoding import Progress, undone
from headrace.consumers.offsets import PartitionOffsets
from headrace.consumers.records import CommitPoint
from headrace.consumers.suspect_encoding import suspect_runs
from headrace.consumers.suspicion import MODES, Suspicion
from headrace.consumers.varints import LARGEST_VARINT
from headrace.schemas.errors import UnreadableOffsets

LIMIT = 4096
FRONTIERS = st.one_of(st.integers(0, 1000), st.integers(0, 2**60))
# (holes before the run, done offsets in the run); 100 pairs at most keep within the limit
RUNS = st.lists(
    st.tuples(st.integers(1, 20), st.one_of(st.integers(1, 4), st.integers(1, 2**40))), max_size=100
)
NOBODY, EVERYBODY = (False, 0, 0), (True, 2**63, 2**63)  # less, and more, suspected than any
SHORT_RUNS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=200)  # these end as bitmaps
# (offsets that are not done before the run, in the run, and their suspicion)
SUSPICIONS = st.builds(
    lambda alone, more, on_trial: Suspicion(max(1, alone + more), alone, on_trial),
    st.integers(0, 3),
    st.one_of(st.integers(0, 3), st.integers(0, 2**30)),
    st.booleans(),
)
SUSPECT_RUNS = st.lists(
    st.tuples(st.one_of(st.integers(0, 3), st.integers(0, 2**20)), st.integers(1, 40), SUSPICIONS),
    max_size=20,
)


@st.composite
def states(draw: st.DrawFn) -> tuple[int, Progress]:
    """A frontier with a done set, a started mark, suspects and a mode."""
    frontier = draw(FRONTIERS)
    end = frontier
    done: list[range] = []
    for holes, length in draw(st.one_of(RUNS, SHORT_RUNS)):
        done.append(range(end + holes, end + holes + length))
        end = done[-1].stop
    started = frontier + draw(st.one_of(st.integers(0, 500), st.integers(0, 2**62)))
    suspects: dict[int, Suspicion] = {}
    numbers = _Undone(frontier, done)
    for skipped, length, suspicion in draw(st.one_of(st.just([]), SUSPECT_RUNS)):
        numbers.take(skipped)
        suspects.update(dict.fromkeys(numbers.take(length), suspicion))
    return frontier, Progress(started, tuple(done), suspects, draw(st.sampled_from(MODES)))


class _Undone:
    """What is not done, taken away from the front, one way to do it."""

    def __init__(self, frontier: int, done: list[range]) -> None:
        self._left = [*undone(frontier, done, offset_encoding.END)]

    def take(self, count: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < count:
            first = self._left[0]
            piece = first[: count - len(taken)]
            self._left[:1] = [first[len(piece) :]] if len(piece) < len(first) else []
            taken += piece if count <= 40 else [0] * len(piece)
        return taken


@st.composite
def mutations(draw: st.DrawFn) -> tuple[int, Progress, str]:
    """A state, and its string with one change: a character, or a piece taken out, doubled or put in."""
    frontier, progress = draw(states())
    text = offset_encoding.encode(frontier, progress, LIMIT)
    at = draw(st.integers(0, len(text) - 1))
    to = draw(st.integers(at + 1, len(text)))
    kind = draw(st.sampled_from(["replace", "delete", "double", "insert", "version", "checksum"]))
    if kind == "replace":
        text = text[:at] + draw(st.sampled_from("0123456789AZaz-_;rbh=")) + text[at + 1 :]
    elif kind == "delete":
        text = text[:at] + text[to:]
    elif kind == "double":
        text = text[:to] + text[at:to] + text[to:]
    elif kind == "insert":
        text = text[:at] + draw(st.text(max_size=4)) + text[at:]
    elif kind == "version":
        text = f"h{draw(st.integers(0, 99))}" + text[2:]
    else:
        text = text[:-1] + draw(st.sampled_from("0123456789abcdef"))
    return frontier, progress, text


def round_trip(frontier: int, progress: Progress) -> None:
    """What is encoded comes back as it was, is ASCII, and within the limit."""
    metadata = offset_encoding.encode(frontier, progress, LIMIT)
    assert metadata.isascii()
    assert 0 < len(metadata) <= LIMIT
    assert offset_encoding.decode(metadata, frontier, LIMIT) == progress


def the_most_suspected_are_kept(frontier: int, progress: Progress, spare: int) -> None:
    """With `spare` characters beyond what the rest needs, suspects fit in, the most suspected first."""
    bare = len(offset_encoding.encode(frontier, progress._replace(suspects={}), LIMIT))
    kept = offset_encoding.what_fits(frontier, progress, bare + spare, 2)
    assert kept._replace(suspects=progress.suspects) == progress
    text = offset_encoding.encode(frontier, kept, bare + spare)
    assert offset_encoding.decode(text, frontier, bare + spare) == kept
    written, left_out = set(kept.suspects), set(progress.suspects) - set(kept.suspects)
    assert {offset: progress.suspects[offset] for offset in written} == kept.suspects
    weight = {
        each: (on_trial, deaths, alone) for each, (deaths, alone, on_trial) in progress.suspects.items()
    }
    most = max((weight[offset] for offset in left_out), default=NOBODY)
    assert most <= min((weight[offset] for offset in written), default=EVERYBODY)
    if left_out:  # the next run in order did not fit: what is written is as much as there is room for
        runs = suspect_runs(progress.suspects, frontier, progress.done)
        waiting = [run for run in runs if run.offsets[0] in left_out]
        next_one = max(waiting, key=lambda run: (weight[run.offsets[0]], -run.first))
        more = kept._replace(
            suspects=dict(kept.suspects) | dict.fromkeys(next_one.offsets, next_one.suspicion)
        )
        assert len(offset_encoding.encode(frontier, more, LIMIT)) > bare + spare
    assert offset_encoding.what_fits(frontier, progress, LIMIT, 2) == progress
    old = offset_encoding.what_fits(frontier, progress, LIMIT, 1)
    assert old == Progress(progress.started, progress.done)


def a_mutated_string_is_refused_or_means_the_same(frontier: int, progress: Progress, mutated: str) -> None:
    """A string that was changed on its way never skips a record (nor does the empty one: all is open)."""
    try:
        read = offset_encoding.decode(mutated, frontier, LIMIT)
    except UnreadableOffsets:
        return
    assert read == progress or (mutated == "" and read.done == ()), f"{mutated!r} was read as {read}"


def whatever_completes_fits(
    tracker: type[PartitionOffsets], limit: int, rounds: list[tuple[list[int], bool, list[int]]]
) -> None:
    """Polls as far as `room` or `fits` allow, completions in any order: each commit is within the limit.

    A round: the gaps before each offset to poll, whether `room` decides or `fits`, and which to complete
    (indices into what is open). After every second round the worker crashes and its successor recovers.
    """
    block = 2**62  # a mark as long as there can be: room is left for it
    offsets = tracker(None, epoch=1, beginning=0, end=0, limit=limit, block=block)
    epoch, end, open_now = 1, 0, list[int]()
    for number, (gaps, by_room, order) in enumerate(rounds):
        room = offsets.room()
        for gap in gaps[:room] if by_room else gaps:
            offset = end + gap
            if not by_room and not offsets.fits(offset):
                break
            end = offset + 1
            assert offsets.polled(offset)
            open_now.append(offset)  # ascending
        offsets.commit_point()
        for index in order:
            if open_now:
                assert offsets.done(open_now.pop(index % len(open_now)), epoch)
                assert len(offsets.commit_point().metadata) <= limit
        if number % 2:
            epoch += 1
            before = offsets.commit_point()
            offsets = tracker(before, epoch=epoch, beginning=0, end=end, limit=limit, block=block)
            offsets.set_mode(MODES[number % 3])
            after = offsets.commit_point()
            assert after.offset == before.offset
            assert len(after.metadata) <= limit
            said = [offset_encoding.decode(point.metadata, point.offset, limit) for point in (before, after)]
            assert said[0].done == said[1].done
            # All that is open is polled again: the successor finds nothing done that is not.
            assert [offset for offset in open_now if offsets.polled(offset)] == open_now


def there_is_room_after_a_recovery(
    progress: Progress, frontier: int, gaps: list[int], order: list[int]
) -> None:
    """A successor whose predecessor left no space in the metadata still polls as far as `room` allows.

    `gaps` are before each offset to poll, `order` the completions (indices into what is open).
    """
    full = Progress(offset_encoding.END, progress.done)
    metadata = offset_encoding.encode(frontier, full, LIMIT)
    limit = max(len(metadata), offset_encoding.SMALLEST_LIMIT)
    offsets = PartitionOffsets(
        CommitPoint(frontier, metadata), epoch=1, beginning=0, end=frontier + 300, limit=limit, block=2**62
    )
    offsets.set_mode("trial")
    most = offset_encoding.payload_budget(limit) // LARGEST_VARINT
    assert offsets.room() >= most, "a successor that waits for room would wait for ever"
    open_now: list[int] = []
    end = frontier
    for gap in gaps:
        if offsets.room() == 0:
            break
        if offsets.polled(end + gap):
            open_now.append(end + gap)
        end += gap + 1
        assert len(offsets.commit_point().metadata) <= limit
    for index in order:
        if open_now:
            assert offsets.done(open_now.pop(index % len(open_now)), 1)
            assert len(offsets.commit_point().metadata) <= limit
