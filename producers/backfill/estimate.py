"""An estimate of a job: its rows looked at, a sample of its prompts measured, a few of its requests asked.

Nothing is written, and nothing is asked but these few, which are no part of the job.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.producers.backfill.answer_index import AnswerIndex
from headrace.producers.backfill.asking import RowAsker
from headrace.producers.backfill.estimating import (
    CHARACTERS_PER_TOKEN,
    Mean,
    Pace,
    deviation,
    mean_by_size,
    mean_of,
    pace_of,
    rows_within,
    will_fail_too_many,
)
from headrace.producers.backfill.examining import Chosen, Examination, Examined
from headrace.producers.backfill.job_files import JobFiles
from headrace.producers.backfill.known_answers import fill_from_earlier_job, is_replaced
from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.preparing import PreparedJob, prepare
from headrace.producers.backfill.prompt_sizes import PromptSizes, prompt_sizes
from headrace.producers.backfill.trial import Trial, ask_some
from headrace.schemas.codec import Codec
from headrace.schemas.errors import MessageError
from headrace.schemas.package import load_package

if TYPE_CHECKING:
    from headrace.consumers.lane_progress import LaneProgress
    from headrace.producers.backfill.job import JobSpec
    from headrace.schemas.messages import JsonValue, Result
    from headrace.schemas.settings import Settings

TRIED: Final = 20  # requests
WITHIN_S: Final = 120.0  # that their answers are waited for
SHOWN: Final = 3  # outputs beside their inputs
SHOWN_FAILED: Final = 2  # of the rows that were tried and failed


@dataclass(slots=True)
class EstimateTellers:
    """How it speaks while it works: bytes of the input, rows that were looked at of how many, sentences."""

    say: Callable[[str], None] = lambda _: None
    reading: Callable[[int, int | None], None] = lambda _read, _of: None
    checking: Callable[[int, int], None] = lambda _rows, _of: None


@dataclass(frozen=True, slots=True)
class Tried:
    """A request that was asked, and what came of it."""

    chosen: Chosen
    outcome: Outcome
    result: Result | None  # None: there is none, `outcome` says why

    @property
    def output(self) -> JsonValue:
        """What it said: the value where it is one of a schema, else the text; None where it said nothing."""
        if self.result is None or not self.result.outputs:
            return None
        output = self.result.outputs[0]
        return output.text if output.value is None else output.value


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the job will come to. Tokens are of all requests to be made; None: there is no telling.

    `completion_deviation`: tokens, from one answer to another. `shortfall`: how many requests `token_budget` is enough
    for, where it is not for all. `stops`: why `max_failures` stops the job.
    """

    job: PreparedJob
    examined: Examined
    prompt_tokens: Mean | None
    prompt_basis: str
    completion_tokens: Mean | None
    completion_deviation: float
    tokens: Mean | None
    shortfall: int | None
    pace: Pace | None
    lane: LaneProgress | None
    request_bytes: Mean
    result_bytes: Mean | None
    stops: str | None
    tried: list[Tried] = field(default_factory=list[Tried])
    trial_job: str = ""
    problem: str | None = None  # why requests were not tried, or not all of them answered

    @property
    def statuses(self) -> dict[str, int]:
        """Of the requests that were tried."""
        return dict(Counter(each.outcome.status for each in self.tried).most_common())

    @property
    def shown(self) -> list[Tried]:
        """The outputs to look at, from all over the input; then some of the requests that came to nothing."""
        good = [each for each in self.tried if each.outcome.status == "ok"]
        count = min(SHOWN, len(good))
        spread = [good[(2 * place + 1) * len(good) // (2 * count)] for place in range(count)]
        return spread + [each for each in self.tried if each.outcome.status != "ok"][:SHOWN_FAILED]

    @property
    def cannot_run(self) -> str | None:
        """Why running the job as it stands comes to nothing."""
        if not self.examined.requests and not self.examined.known:
            return "all rows are refused: there is nothing to ask"
        return self.stops


def estimate(
    settings: Settings,
    spec: JobSpec,
    tell: EstimateTellers,
    *,
    tried: int = TRIED,
    within_s: float = WITHIN_S,
) -> Estimate:
    """Look at all rows, and ask about `tried` of them.

    Raises what `prepare` raises, and for `reuse` JobInvalid and OutputFailed.
    """
    job = prepare(settings, spec, tell.reading)
    sizes = prompt_sizes(None if spec.package is None else load_package(Path(spec.package)))
    with contextlib.ExitStack() as stack:
        answers = None
        if spec.reuse is not None:
            answers = AnswerIndex()
            stack.callback(answers.close)
            files = JobFiles.of(spec)
            if not is_replaced(spec.reuse, files, files.state()):
                fill_from_earlier_job(answers, settings, spec.reuse, files, job, only_looks=True)
        rows = job.source.row_count
        examination = Examination(
            RowAsker(job.mapping, job.digests),
            sizes,
            limit=spec.breaker,
            rows=rows,
            trials=tried,
            dedupe=spec.dedupe,
            answers=answers,
        )
        examined = examination.of(job.source, lambda seen: tell.checking(seen, rows))
    trial = Trial(problem="no row was tried")
    if tried and examined.chosen:
        tell.say(f"asks about {len(examined.chosen)} rows through the lane {spec.lane}")
        trial = ask_some(settings, spec, job.names, examined.chosen, within_s)
    elif examined.requests == 0:
        trial.problem = "no request is to be made"
    return figures(job, examined, sizes, trial)


def figures(job: PreparedJob, examined: Examined, sizes: PromptSizes, trial: Trial) -> Estimate:
    """The estimate, from what was seen. Pure."""
    spec, requests = job.spec, examined.requests
    tried = [each for chosen in examined.chosen if (each := _tried(job, chosen, trial)) is not None]
    results = [each.result for each in tried if each.result is not None]
    is_of_variables = spec.openai_batch is None and spec.prompt is None and spec.messages is None
    prompts, basis = _prompts(examined, sizes, tried, hides_template=is_of_variables and spec.package is None)
    generated = [result.usage.completion_tokens for result in results]
    completions = mean_of(generated, requests) if generated else None
    each = None if prompts is None or completions is None else prompts.plus(completions)
    budget = spec.token_budget
    failed = sum(one.outcome.status != "ok" for one in tried)
    stops = will_fail_too_many(
        spec.breaker, examined.rows, examined.rejects, examined.rows - examined.rejects - examined.known, failed,
        len(tried),
    )  # fmt: skip
    if examined.stops_at is not None:
        stops = f"{examined.stops_at[0]}: the job would stop at row {examined.stops_at[1]:,}"
    encoded = [float(len(Codec().encode(result))) for result in results]
    return Estimate(
        job=job,
        examined=examined,
        prompt_tokens=None if prompts is None else prompts.times(requests),
        prompt_basis=basis,
        completion_tokens=None if completions is None else completions.times(requests),
        completion_deviation=deviation(generated),
        tokens=None if each is None else each.times(requests),
        shortfall=None
        if budget is None or each is None or budget >= each.times(requests).value
        else rows_within(budget, requests, each),
        pace=_pace(results, trial),
        lane=trial.lane,
        request_bytes=mean_of([float(one.bytes) for one in examined.sample], requests).times(requests),
        result_bytes=mean_of(encoded, requests).times(requests) if encoded else None,
        stops=stops,
        tried=tried,
        trial_job=trial.job,
        problem=trial.problem,
    )


def _tried(job: PreparedJob, chosen: Chosen, trial: Trial) -> Tried | None:
    result = trial.results.get(chosen.row)
    if result is not None:
        return Tried(chosen, job.mapping.outcome_of(result), result)
    error = trial.refused.get(chosen.row)
    if error is None:
        return None
    status = "rejected" if isinstance(error, MessageError) else "failed"
    return Tried(chosen, Outcome(status, code=error.code, error=str(error), asked=False), None)


def _prompts(
    examined: Examined, sizes: PromptSizes, tried: list[Tried], *, hides_template: bool
) -> tuple[Mean | None, str]:
    """Tokens of a prompt, and what that is reckoned of. `hides_template`: prompts are made of more than was seen."""
    requests = examined.requests
    measured = [float(each.size) for each in examined.sample]
    # What was refused by the worker was not tokenised there.
    seen = [
        (float(each.chosen.size), float(each.result.usage.prompt_tokens))
        for each in tried
        if each.result is not None and each.result.usage.prompt_tokens
    ]
    what = f"{'all' if len(measured) >= requests else 'a sample of'} {len(measured):,} prompts"
    if sizes.counts_tokens:
        if not seen:
            return (
                mean_of(measured, requests),
                f"{what}, {sizes.basis}, without what the chat template adds",
            )
        return (
            mean_by_size(seen, measured, requests),
            f"{what}, {sizes.basis}; what the chat template adds is seen from {len(seen)} answers",
        )
    if seen:
        return (
            mean_by_size(seen, measured, requests),
            f"the characters of {what}, and the tokens that {len(seen)} answers tell of ({sizes.basis})",
        )
    if not measured:
        return None, "no prompt was to be measured"
    if hides_template:
        return (
            None,
            f"not to be told without trying some rows: {sizes.basis}, and its template makes the prompts",
        )
    characters = mean_of(measured, requests).value
    low, high = (characters / each for each in reversed(CHARACTERS_PER_TOKEN))
    return (
        Mean((low + high) / 2, (high - low) / 2),
        f"the characters of {what}, taking a token for {CHARACTERS_PER_TOKEN[0]} to {CHARACTERS_PER_TOKEN[1]} of them, "
        f"which is a rule of thumb ({sizes.basis})",
    )


def _pace(results: list[Result], trial: Trial) -> Pace | None:
    timings = [result.timings for result in results]
    if not timings or trial.lane is None:
        return None
    service_s = [max(0, each.total_ms - each.queued_ms) / 1000 for each in timings]
    # Their requests lay in Kafka from the same moment on.
    return pace_of(service_s, max(each.total_ms for each in timings) / 1000, trial.lane.capacity)
