"""Names of the record headers. Values are UTF-8."""

from __future__ import annotations

CORRELATION_ID = "correlation-id"  # of a request: chosen by the client; its replies have it as their key
REPLY_TOPIC = "reply-topic"
REPLY_PARTITION = "reply-partition"  # a decimal number
TRACEPARENT = "traceparent"  # W3C trace context, copied from the request to what comes of it
STATUS = "status"  # of a result: its status
MODEL_VERSION = "model-version"  # of a result: the version that produced it
REQUEST_ID = "request-id"  # of a result and a dead letter, for readers that do not decode the value
JOB = "job"  # of a result: the request's job
ERROR_CODE = "error-code"  # of a dead letter
