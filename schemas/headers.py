"""Names of the record headers. Values are UTF-8."""

from __future__ import annotations

CORRELATION_ID = "correlation-id"  # of a request: chosen by the client; its replies have it as their key
REPLY_TOPIC = "reply-topic"
REPLY_PARTITION = "reply-partition"  # a decimal number
TRACEPARENT = "traceparent"  # W3C trace context, copied from the request to what comes of it
STATUS = "status"  # of a result: its status
MODEL_VERSION = "model-version"  # of a result and a dead letter: the version that produced it
# Of a request that was sent again from a dead letter: a decimal number, the how-manieth time. It is run unless an `ok`
# is known of its id, and its deadline does not count. Copied to what comes of it.
REPLAY = "headrace-replay"
REPLAY_OF = "headrace-replay-of"  # of such a request: its first dead letter, as `topic-partition@offset`
REPLAY_AGAIN = "headrace-replay-again"  # of such a request, with any value: run it whatever is known of it
# Of a request that was sent again because of who answered it, and of the result that comes of it: the result that it
# supersedes, as `topic-partition@offset`.
SUPERSEDES = "headrace-supersedes"
SHADOW = "headrace-shadow"  # of what a shadow has written: its version
REQUEST_ID = "request-id"  # of a result and a dead letter, for readers that do not decode the value
JOB = "job"  # of a result: the request's job
ERROR_CODE = "error-code"  # of a dead letter
