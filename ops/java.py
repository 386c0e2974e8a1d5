"""The local Java, as Apache Kafka needs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

OLDEST_MAJOR = 17  # what Apache Kafka 4's broker needs
ANSWER_WITHIN_S = 20.0


@dataclass(frozen=True)
class Java:
    """A `java` command and its major version (17, 21, ...)."""

    command: str
    major: int

    @property
    def runs_kafka(self) -> bool:
        return self.major >= OLDEST_MAJOR


def find_java(environment: Mapping[str, str] = os.environ) -> Java | None:
    """`$JAVA_HOME/bin/java`, else the `java` on the path; None when there is none that runs."""
    home = environment.get("JAVA_HOME")
    candidate = os.path.join(home, "bin", "java") if home else "java"
    command = shutil.which(candidate, path=environment.get("PATH"))
    if command is None:
        return None
    try:
        # Also tells a real Java from macOS' placeholder, which only prints where to get one.
        answer = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=ANSWER_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    major = major_version(answer.stderr + answer.stdout)
    return Java(command, major) if answer.returncode == 0 and major is not None else None


def major_version(printed: str) -> int | None:
    """From what `java -version` prints: `openjdk version "17.0.15"` is 17, `version "1.8.0_392"` is 8."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', printed)
    if found is None:
        return None
    first, second = found.groups()
    return int(second) if first == "1" and second else int(first)
