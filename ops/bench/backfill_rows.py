"""The rows of a comparison: film-like, each prompt unlike the others, the same on every machine."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headrace.ops.demo import EXAMPLES

BadRow = Literal["too long", "not JSON"]

# More than any context of the models that are compared with: a word has a token at least.
TOO_LONG_WORDS = 20_000
GENRES = ("drama", "comedy", "thriller", "western", "horror", "romance", "adventure", "documentary")
_TITLE_WORDS = (
    "river", "winter", "stranger", "garden", "iron", "last", "silent", "paper", "golden", "night", "summer", "broken",
    "harbour", "crown", "lost", "train", "letter", "burning", "island", "mirror", "hollow", "red", "engine", "dancer",
)  # fmt: skip
_NAMES = (
    "Ada",
    "Bruno",
    "Chiara",
    "Dmitri",
    "Elena",
    "Farid",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Keiko",
    "Luis",
)
_SURNAMES = ("Arlt", "Berger", "Castel", "Dunne", "Eriksen", "Fontaine", "Gallo", "Hartman", "Ito", "Jansen")
_PLOT = (
    "a family waits for a letter", "two rivals share one boat", "a clerk finds a map", "the town loses its bridge",
    "a singer hides from fame", "an old debt returns", "three children cross a border", "nobody believes the witness",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FilmRow:
    """A row, and what is asked with it."""

    id: str
    title: str
    year: str
    genre: str
    director: str
    plot: str

    @property
    def prompt(self) -> str:
        """What is asked: one message of the user."""
        return (
            "Describe the movie in JSON: a pitch in one short sentence, its mood, two to four tags, its audience, and "
            f"its appeal from 1 to 10.\n\nMovie: {self.title} ({self.year}), {self.genre}, "
            f"directed by {self.director}\nPlot: {self.plot}."
        )


@dataclass(frozen=True, slots=True)
class Asking:
    """What all rows are asked with."""

    schema: dict[str, Any]  # of an answer
    max_tokens: int = 160
    temperature: float = 0.8
    top_p: float = 0.95
    # None: vLLM 0.32 on a CPU dies of a seeded request whose prompt it takes in two steps ("CPU Generator does not use
    # offset"), and so of many at a time.
    seed: int | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        """In the names that OpenAI's API and vLLM share."""
        sampling: dict[str, Any] = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
        }
        return sampling if self.seed is None else sampling | {"seed": self.seed}


def film_rows(count: int) -> list[FilmRow]:
    """So many rows; the first of them are the same whatever `count`."""
    dice = random.Random(1895)
    rows: list[FilmRow] = []
    for number in range(count):
        words = dice.sample(_TITLE_WORDS, dice.randint(1, 4))
        plot = ", and ".join(dice.sample(_PLOT, dice.randint(1, 5)))
        rows.append(
            FilmRow(
                id=f"film-{number:06d}",
                title=f"The {' '.join(words).title()} {number}",
                year=str(dice.randint(1920, 2025)),
                genre=dice.choice(GENRES),
                director=f"{dice.choice(_NAMES)} {dice.choice(_SURNAMES)}",
                plot=plot,
            )
        )
    return rows


def too_long(row: FilmRow) -> FilmRow:
    """The same row with a plot that no model here can hold."""
    return FilmRow(row.id, row.title, row.year, row.genre, row.director, "and then " * (TOO_LONG_WORDS // 2))


def table_lines(rows: Iterable[FilmRow]) -> list[str]:
    """The rows as a table in JSON lines."""
    return [
        json.dumps(
            {
                "custom_id": row.id,
                "title": row.title,
                "year": row.year,
                "genre": row.genre,
                "director": row.director,
                "prompt": row.prompt,
            }
        )
        for row in rows
    ]


def batch_lines(rows: Iterable[FilmRow], model: str, asking: Asking) -> list[str]:
    """The rows as lines of an OpenAI batch file."""
    form = {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": asking.schema},
    }
    return [
        json.dumps(
            {
                "custom_id": row.id,
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": model,
                    "messages": [{"role": "user", "content": row.prompt}],
                    **asking.sampling,
                    "response_format": form,
                },
            }
        )
        for row in rows
    ]


def write_lines(lines: Sequence[str], target: Path, *, cut: int | None = None) -> None:
    """Write them; of the line of that number its first half alone, which is no JSON."""
    with target.open("w", encoding="utf-8") as file:
        for number, line in enumerate(lines):
            file.write((line[: len(line) // 2] if number == cut else line) + "\n")


def film_schema() -> dict[str, Any]:
    """The JSON Schema of an answer: that of the example package `movie-tagger`."""
    return json.loads((EXAMPLES / "movie-tagger" / "output.schema.json").read_text("utf-8"))
