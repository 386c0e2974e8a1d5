"""What garbage collection need not look at again."""

from __future__ import annotations

import gc


def freeze_heap() -> None:
    """Take what is there now out of the sight of the garbage collector; for a process that has started and will serve.

    A full collection holds all threads up while it looks at every object, and those of the imported modules are most of
    them: 60 to 100 ms for everybody's tokens in an endpoint or a worker, several times that with torch.
    """
    gc.collect()
    gc.freeze()
