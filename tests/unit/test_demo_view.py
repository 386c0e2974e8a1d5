"""The demo's view keeps to the width of its terminal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import EXAMPLES

from headrace.ops.demo import writable
from headrace.ops.demo_view import SHORTEST_TEXT, column_widths
from headrace.schemas.errors import SettingsError

TAGS: dict[str, list[Any]] = {
    "pitch": ["Two rival toys must work together to find their way home."],
    "mood": ["thrilling"],
    "tags": [["adventure", "identity", "mystery", "betrayal"]],
    "audience": ["teenagers"],
    "appeal": [10],
}


def test_a_wide_terminal_shows_every_column_and_a_narrow_one_leaves_the_text_out() -> None:
    assert list(column_widths(TAGS, 120)) == list(TAGS)
    assert list(column_widths(TAGS, 80)) == ["mood", "tags", "audience", "appeal"]


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_short_values_are_never_cut(width: int) -> None:
    widths = column_widths(TAGS, width)
    assert (widths["mood"], widths["audience"], widths["appeal"]) == (9, 9, 6)


@given(width=st.integers(80, 300))
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_table_is_no_wider_than_the_terminal_and_text_has_room_or_no_column(width: int) -> None:
    widths = column_widths(TAGS, width)
    film = 28 if width >= 100 else 22
    assert film + sum(widths.values()) + 3 * (1 + len(widths)) + 1 <= width
    assert widths.get("pitch", SHORTEST_TEXT) >= SHORTEST_TEXT


def test_a_cache_that_cannot_be_written_to_is_an_error_that_names_the_variable(tmp_path: Any) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="HEADRACE_CACHE_DIR"):
        writable(tmp_path / "file" / "logs")
    assert writable(tmp_path / "logs").is_dir()
