"""Failures that a simulated engine is told to have, so that a test can see what becomes of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, Self, cast, get_args

from headrace.schemas.errors import SettingsError

Failure = Literal["die", "vanish", "reject", "error", "abort", "invalid_output", "truncated", "hang"]
FAILURES: tuple[Failure, ...] = get_args(Failure)


@dataclass(frozen=True, slots=True)
class Fate:
    """What is to become of a job; `after_s`: of `die` and `vanish`, how long it runs before."""

    kind: Failure
    after_s: float = 0.0


@dataclass(slots=True)
class _Rule:
    fate: Fate
    request_id: str | None
    prompt_contains: str | None
    left: int | None  # how often still; None: always

    def matches(self, request_id: str, prompt: str) -> bool:
        return (self.request_id is None or self.request_id == request_id) and (
            self.prompt_contains is None or self.prompt_contains in prompt
        )


class Script:
    """Which jobs fail, and how. Rules are asked in the order in which they were given; the first that matches
    counts.

    die             the engine dies while it runs the job: EngineDead, for every job from then on
    vanish          the process ends while it runs the job, as by `kill -9`: nobody is told anything
    reject          EngineRejected before it begins
    error           a Generation with finish_reason `error` and no text, as of a grammar that did not compile
    abort           finish_reason `abort`, half of the text
    invalid_output  a text that violates the constraint, or a call that no tool takes, with finish_reason `stop`
    truncated       half of the text, with finish_reason `length`
    hang            nothing happens until `release()`, an abort, or the engine's end
    """

    def __init__(self) -> None:
        self._rules: list[_Rule] = []
        self.released = False

    def fail_next(self, kind: Failure, *, times: int = 1) -> None:
        """The next `times` jobs fail so, whichever they are."""
        self.fail(kind, times=times)

    def fail(
        self,
        kind: Failure,
        *,
        request_id: str | None = None,
        prompt_contains: str | None = None,
        times: int | None = None,
        after_s: float = 0.0,
    ) -> None:
        """Jobs with this id, or with this text in their prompt, fail so: the next `times`, or all.

        `after_s` is how long a job runs before it kills (`die`, `vanish`), as the engine's time scale has it.
        """
        self._rules.append(_Rule(Fate(kind, after_s), request_id, prompt_contains, times))

    def take(self, request_id: str, prompt: str) -> Fate | None:
        """What is to become of a job; counts down the rule that says so."""
        for rule in self._rules:
            if rule.matches(request_id, prompt):
                if rule.left is not None:
                    rule.left -= 1
                    if rule.left <= 0:
                        self._rules.remove(rule)
                return rule.fate
        return None

    @property
    def empty(self) -> bool:
        """True while there is no rule: nothing needs to be asked."""
        return not self._rules

    @classmethod
    def from_json(cls, text: str) -> Self:
        """From a list of objects with `kind`, and `request_id`, `prompt_contains`, `times`, `after_s` where wanted.

        Raises SettingsError for anything else.
        """
        script = cls()
        try:
            for rule in cast("list[dict[str, Any]]", json.loads(text)):
                if rule["kind"] not in FAILURES:
                    raise SettingsError(f"no such failure: {rule['kind']!r}; known are {', '.join(FAILURES)}")
                script.fail(**rule)
        except (TypeError, KeyError, ValueError) as error:
            raise SettingsError(f"not a script of failures: {error}") from error
        return script
