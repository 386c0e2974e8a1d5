"""The string beside a committed offset: its forms, and what is refused."""

from __future__ import annotations

import base64
import zlib

import pytest

from headrace.consumers.offset_encoding import END, Progress, decode, encode, payload_budget, varint_size
from headrace.schemas.errors import OffsetsTooLong, UnreadableOffsets

LIMIT = 4096


def sealed(frontier: int, ahead: object, form: str, payload: bytes | str) -> str:
    """A string with a right checksum, whatever is in it."""
    text = payload if isinstance(payload, str) else base64.urlsafe_b64encode(payload).rstrip(b"=").decode()
    body = f"h1;{ahead};{form}{text}"
    return f"{body};{zlib.crc32(f'{frontier};{body}'.encode()):08x}"


def test_what_it_looks_like() -> None:
    assert encode(5, Progress(5), LIMIT) == sealed(5, 0, "r", b"")
    assert encode(5, Progress(9, (range(6, 8),)), LIMIT) == sealed(5, 4, "r", b"\x02")
    assert encode(5, Progress(5, (range(6, 8), range(10, 210))), LIMIT) == sealed(
        5, 0, "r", b"\x02\x00\xc8\x01"
    )


def test_the_bitmap_is_taken_where_it_is_shorter() -> None:
    every_other = Progress(5, tuple(range(n, n + 1) for n in range(6, 22, 2)))
    assert encode(5, every_other, LIMIT) == sealed(5, 0, "b", b"\x55\x55")


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
        ("h2;0;r;6d2ff8b5", "form"),
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
