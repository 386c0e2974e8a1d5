"""Every metric of ours, declared once. They live in prometheus_client's default registry, where vLLM's are too.

Unit and labels stand in the name and the declaration. `tests/unit/test_metrics.py` holds that the documentation
names each of them.
"""

from __future__ import annotations

import functools
from typing import TypeVar

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

M = TypeVar("M", bound=MetricWrapperBase)

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

REQUESTS = Counter(
    "headrace_requests", "Requests answered, by status.", ["model", "model_version", "lane", "status"]
)
OUTPUTS_CHECKED = Counter(
    "headrace_outputs_checked",
    "Outputs held against an output schema, or against tools, by verdict (valid, invalid, truncated).",
    ["model", "model_version", "verdict"],
)
ATTEMPTS = Counter(
    "headrace_generation_attempts", "Generations begun, retries included.", ["model", "model_version"]
)
PROMPT_TOKENS = Counter("headrace_prompt_tokens", "Tokens of prompts served.", ["model", "model_version"])
COMPLETION_TOKENS = Counter("headrace_completion_tokens", "Tokens generated.", ["model", "model_version"])
DEAD_LETTERS = Counter("headrace_dead_letters", "Dead letters published, by code.", ["model", "code"])
DUPLICATES = Counter("headrace_duplicate_requests", "Requests whose id was already asked for.", ["model"])
QUEUE_SECONDS = Histogram(
    "headrace_queue_seconds",
    "From a request's append time to its admission.",
    ["model", "lane"],
    buckets=_SECONDS,
)
FIRST_TOKEN_SECONDS = Histogram(
    "headrace_first_token_seconds",
    "From a streamed request's append time to its first token.",
    ["model", "lane"],
    buckets=_SECONDS,
)
TOTAL_SECONDS = Histogram(
    "headrace_total_seconds",
    "From a request's append time to its validated output.",
    ["model", "lane"],
    buckets=_SECONDS,
)
HTTP_CALLS = Counter(
    "headrace_http_calls", "Calls of the HTTP endpoint that have ended, by status.", ["endpoint", "status"]
)
HTTP_SECONDS = Histogram(
    "headrace_http_seconds", "From a call's arrival to its last byte.", ["endpoint"], buckets=_SECONDS
)
HTTP_FIRST_TOKEN_SECONDS = Histogram(
    "headrace_http_first_token_seconds",
    "From a streamed call's arrival to its first text.",
    ["endpoint"],
    buckets=_SECONDS,
)
HTTP_RUNNING = Gauge("headrace_http_running", "Calls of the HTTP endpoint that have not ended.", ["endpoint"])
HTTP_PENDING = Gauge(
    "headrace_http_pending_requests", "Requests of the HTTP endpoint that wait for their replies."
)
IN_FLIGHT = Gauge("headrace_in_flight", "Requests that the engine has been given.", ["model"])
WAITING = Gauge("headrace_waiting", "Requests polled and not yet admitted.", ["model", "lane"])
LAG = Gauge(
    "headrace_lag_records",
    "Records of a lane behind the log's end, partitions of this worker.",
    ["model", "lane"],
)
PARTITIONS = Gauge("headrace_partitions", "Partitions assigned to this worker.", ["model", "lane"])
PARKED_PARTITIONS = Gauge(
    "headrace_parked_partitions", "Partitions not served until an operator decides.", ["model", "lane"]
)
LOST_RECORDS = Counter(
    "headrace_lost_records", "Records that retention removed before they were served.", ["model", "lane"]
)
TRANSACTIONS = Counter(
    "headrace_transactions", "Transactions, by outcome (committed, stale, refused).", ["model", "outcome"]
)
TRANSACTION_SECONDS = Histogram(
    "headrace_transaction_seconds", "Duration of a committed transaction.", ["model"], buckets=_SECONDS
)
STALE_COMPLETIONS = Counter(
    "headrace_stale_completions", "Completions dropped because their partition had moved on.", ["model"]
)
REPLIES = Counter("headrace_replies", "Replies sent, by kind; `lost` could not be sent.", ["model", "kind"])
DRAINING = Gauge(
    "headrace_draining_partitions", "Partitions that take no more requests since they are to move.", ["model"]
)
RELEASED = Counter(
    "headrace_released_units",
    "Units let go for another worker: `drained` of all work, or past the budget `aborted`.",
    ["model", "outcome"],
)
GIVEN_UP = Counter(
    "headrace_given_up_generations",
    "Generations begun and given up, which another worker begins anew.",
    ["model"],
)
DEATHS = Counter(
    "headrace_worker_deaths",
    "Deaths with requests in flight: `engine` of this worker, `predecessor` as found in its offsets.",
    ["model", "cause"],
)
SUSPECTS = Gauge(
    "headrace_suspects", "Requests held back since workers died with them in flight, and on trial.", ["model"]
)
POISON = Counter(
    "headrace_poison_requests", "Requests that were found to kill the engine, and failed.", ["model"]
)
RETENTION_HEADROOM = Gauge(
    "headrace_retention_headroom_ratio",
    "Of the partition nearest to it: how far retention is from what is unread, as a part of its log. 0: reached.",
    ["model", "lane"],
)
GENERATION = Gauge(
    "headrace_group_generation", "The consumer group's generation as this member knows it.", ["model"]
)
READY = Gauge(
    "headrace_ready", "1 when the engine has answered a probe and the worker is in its group.", ["model"]
)


@functools.cache
def child(metric: M, *labels: str) -> M:
    """`metric.labels(*labels)`, looked up once: the library's own takes a lock each time, and this is called for
    every request. For labels that have few values alone.
    """
    return metric.labels(*labels)
