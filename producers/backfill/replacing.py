"""How a part takes the place of an earlier one, whenever the process is killed.

A round that asks anew writes its parts into a folder where nobody reads them. Then the state names the part, and only
then it goes where the former one was: until it is there, and again whenever the job is run, what the state names is put
in its place. A part that the state does not name was written by a process that was killed before it had said so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.producers.backfill.parts import KnownPart, reject_count, rejects_name

if TYPE_CHECKING:
    from headrace.producers.backfill.assembly import Places


def places_of_round(places: Places, round_: int) -> Places:
    """Where a round writes its parts and their rejects: the first one where they belong."""
    return places if round_ == 0 else replace(places, parts=places.waiting, rejects=places.waiting)


def put_in_place(places: Places, part: KnownPart) -> None:
    """Put a part that waits, and that the state names, where the former one is. Raises OutputFailed.

    Any other that waits under its name stays: whoever has taken the job over may be about to name it.
    """
    data = places.waiting.read(part.file)
    if data is None or hashlib.sha256(data).hexdigest() != part.sha256:
        return
    rejects = rejects_name(part.number)
    if reject_count(part):
        places.rejects.write(rejects, places.waiting.read(rejects) or b"")
    else:
        places.rejects.delete(rejects)
    places.parts.write(part.file, data)
    # The part first: where it is, its rejects are.
    places.waiting.delete(part.file)
    places.waiting.delete(rejects)


def put_all_in_place(places: Places, parts: Iterable[KnownPart]) -> None:
    """The same for all parts of a state, when a job is taken up; nothing waits after it. Raises OutputFailed."""
    waiting = set(places.waiting.names())
    for part in parts:
        if part.file in waiting:
            put_in_place(places, part)
    for name in places.waiting.names():
        places.waiting.delete(name)
    places.waiting.delete_if_empty()
