"""What the endpoint promises the official client, held against a simulated engine and a real one, on real Kafka.

A test module makes a subclass whose name begins with `Test`, and gives a fixture `stage`, which is made once.
"""

from __future__ import annotations

from conformance.http_port_answers import HttpAnswers
from conformance.http_port_failures import HttpFailures
from conformance.http_port_lives import HttpLives
from conformance.http_port_structured import HttpStructured


class HttpPort(HttpLives, HttpFailures, HttpStructured, HttpAnswers):
    """Subclass it as `Test...` with a fixture `stage`.

    pytest begins with the last of the bases: the lives come last, for they end instances.
    """
