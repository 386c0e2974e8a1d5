"""The string beside a committed offset: its forms, and what is refused."""

from __future__ import annotations

import base64
import zlib
from itertools import pairwise

import pytest

from headrace.consumers.offset_encoding import (
    END,
    Progress,
    decode,
    encode,
    payload_budget,
    undone,
    what_fits,
)
from headrace.consumers.suspicion import Mode, Suspicion
from headrace.consumers.varints import varint_size
from headrace.schemas.errors import OffsetsTooLong, UnreadableOffsets

LIMIT = 4096


def sealed(frontier: int, ahead: object, form: str, payload: bytes | str, version: str = "h1") -> str:
    """A string with a right checksum, whatever is in it."""
    text = payload if isinstance(payload, str) else base64.urlsafe_b64encode(payload).rstrip(b"=").decode()
    body = f"{version};{ahead};{form}{text}"
    return f"{body};{zlib.crc32(f'{frontier};{body}'.encode()):08x}"


def text(*numbers: int) -> str:
    return base64.urlsafe_b64encode(bytes(numbers)).rstrip(b"=").decode()


def suspected(*numbers: int, form: str = "r", done: str = "") -> str:
    """An `h2` string at frontier 5 with these bytes as its suspects."""
    return sealed(5, 9, form, f"{done};{text(*numbers)}", "h2")


def test_what_it_looks_like() -> None:
    assert encode(5, Progress(5), LIMIT) == sealed(5, 0, "r", b"")
    assert encode(5, Progress(9, (range(6, 8),)), LIMIT) == sealed(5, 4, "r", b"\x02")
    assert encode(5, Progress(5, (range(6, 8), range(10, 210))), LIMIT) == sealed(
        5, 0, "r", b"\x02\x00\xc8\x01"
    )


def test_the_bitmap_is_taken_where_it_is_shorter() -> None:
    every_other = Progress(5, tuple(range(n, n + 1) for n in range(6, 22, 2)))
    assert encode(5, every_other, LIMIT) == sealed(5, 0, "b", b"\x55\x55")


def test_what_it_looks_like_with_suspects_and_a_mode() -> None:
    once, twice = Suspicion(1), Suspicion(2, 1, True)
    # 6 and 7 are done: 5, 8 and 9 follow each other.
    progress = Progress(14, (range(6, 8),), {5: once, 8: once, 9: once, 11: twice}, "alone")
    assert encode(5, progress, LIMIT) == suspected(0, 2, 0, 1, 0, 7, 0, form="t", done=text(2))
    assert encode(5, Progress(14, mode="trial"), LIMIT) == sealed(5, 9, "s", "", "h2")


@pytest.mark.parametrize("mode", ["trial", "alone"])
def test_a_mode_takes_no_room(mode: Mode) -> None:
    for done in [(), (range(6, 8),), tuple(range(n, n + 1) for n in range(6, 22, 2))]:
        progress = Progress(9, done)
        assert len(encode(5, progress._replace(mode=mode), LIMIT)) == len(encode(5, progress, LIMIT))


def test_what_is_not_done_in_ranges() -> None:
    done = (range(6, 8), range(10, 12))
    assert list(undone(5, done, 20)) == [range(5, 6), range(8, 10), range(12, 20)]
    assert list(undone(5, done, 9)) == [range(5, 6), range(8, 9)]
    assert list(undone(5, done, 11)) == [range(5, 6), range(8, 10)]
    assert list(undone(5, done, 5)) == []


def test_the_least_suspected_are_left_out_first() -> None:
    suspects = {
        5: Suspicion(1), 7: Suspicion(3), 9: Suspicion(1), 11: Suspicion(2), 13: Suspicion(2, 0, True), 15: Suspicion(3)
    }  # fmt: skip
    everything = Progress(20, (), suspects)
    kept = [
        set(what_fits(5, everything, limit, 2).suspects)
        for limit in range(len(encode(5, everything, LIMIT)), 15, -1)
    ]
    steps = [kept[0], *(after for before, after in pairwise(kept) if after != before)]
    assert steps == [
        {5, 7, 9, 11, 13, 15},
        {5, 7, 11, 13, 15},
        {7, 11, 13, 15},
        {7, 13, 15},
        {7, 13},
        {13},
        set(),
    ]


def test_the_oldest_format_has_neither_suspects_nor_a_mode() -> None:
    assert what_fits(5, Progress(9, (), {6: Suspicion(1)}, "trial"), LIMIT, 1) == Progress(9)


def test_a_newer_releases_string_is_told_from_a_broken_one() -> None:
    with pytest.raises(UnreadableOffsets, match=r"a newer release of Headrace wrote it \(format h3"):
        decode("h3;whatever it says", 5, LIMIT)


def test_a_few_states_come_back_as_they_went() -> None:
    for done in [(), (range(6, 7),), (range(6, 7), range(8, 9)), (range(6, 10**15),)]:
        assert decode(encode(5, Progress(11, done), LIMIT), 5, LIMIT) == Progress(11, done)


def test_a_hole_of_impossible_length_is_refused_before_it_is_written_out() -> None:
    with pytest.raises(OffsetsTooLong):
        encode(0, Progress(0, (range(10**15, 10**15 + 1),)), LIMIT)


def test_sizes_of_numbers() -> None:
    assert [varint_size(n) for n in (0, 127, 128, 2**14 - 1, 2**14, END)] == [1, 1, 2, 2, 3, 9]


def test_the_smallest_limit_leaves_two_holes_at_any_distance() -> None:
    assert payload_budget(64) >= 2 * 9


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ("h2;0;r;6d2ff8b5", "checksum"),
        ("h0;0;r;6d2ff8b5", "form"),
        (sealed(5, 0, "r", b"", "h2"), "one string"),  # nothing that h1 could not say
        (sealed(5, 0, "s", b""), "one string"),
        (sealed(5, 0, "r", ";AAAA"), "one string"),
        (sealed(5, 0, "r", ";", "h2"), "form"),
        (suspected(0, 2), "within a run of suspects"),
        (suspected(0, 2, 2), "within a run of suspects"),
        (suspected(0, 2, 2, 1), "deaths that cannot have been"),  # alone twice at one death
        (suspected(0, 2, *b"\xfc\xff\xff\xff\xff\x7f"), "deaths that cannot have been"),
        (suspected(0, *b"\xff\xff\xff\x7f", 0), "more than 524288 suspects"),
        (suspected(*b"\xff" * 8, 0x7F, 9, 0), "largest offset"),
        (suspected(0, 2, 0, 0, 3, 0), "one string"),  # two runs of one kind that follow each other
        (sealed(5, 9, "r", ";A", "h2"), "one string"),
        ("H1;0;r;6d2ff8b5", "form"),
        (sealed(5, 0, "x", b""), "form"),
        (sealed(5, -1, "r", b""), "form"),
        (sealed(5, "00", "r", b""), "form"),
        (sealed(5, "٣", "r", b""), "form"),
        (sealed(5, 0, "r", "AA=="), "form"),
        (sealed(5, 0, "r", "A+/A"), "form"),
        (sealed(5, 0, "r", b"") + "\n", "form"),
        (sealed(5, 0, "r", b"").upper(), "form"),
        (sealed(6, 0, "r", b"\x01"), "checksum"),  # of another offset
        (sealed(5, 0, "r", "A"), "one string"),  # no whole byte
        (sealed(5, 0, "r", "AR"), "one string"),  # bits after the last byte
        (sealed(5, 0, "r", b"\x80"), "within a number"),
        (sealed(5, 0, "r", b"\x81\x00"), "one string"),  # a number in more bytes than it needs
        (sealed(5, 0, "r", b"\xff" * 9 + b"\x01"), "too long"),
        (sealed(5, 0, "r", b"\xff" * 8 + b"\x7f"), "largest offset"),
        (sealed(5, 0, "r", b"\x01\x00"), "one string"),  # a hole above the last done offset
        (sealed(5, 0, "r", b"\x00"), "one string"),
        (sealed(5, 0, "b", b""), "one string"),
        (sealed(5, 0, "b", b"\x01"), "one string"),  # as short as the other form, which then is the one
        (sealed(5, 0, "b", b"\x55\x55\x00"), "one string"),
        (sealed(5, 0, "r", b"\x01" * 40), "one string"),  # the bitmap would be shorter
        (sealed(5, END, "r", b""), "largest offset"),
        ("h1;0;r" + "A" * 5000 + ";00000000", "characters"),
    ],
)
def test_what_encode_would_not_write_is_refused(metadata: str, why: str) -> None:
    with pytest.raises(UnreadableOffsets, match=why):
        decode(metadata, 5, LIMIT)
