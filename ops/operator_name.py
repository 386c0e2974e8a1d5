"""Who runs a command: what `control` remembers beside each decision."""

from __future__ import annotations

import getpass
import socket


def operator_name() -> str:
    """`user@host`."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
