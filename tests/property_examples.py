"""How many examples a property test runs: 300, or what HEADRACE_EXAMPLES says (5,000 in `make soak`)."""

import os

EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "300"))
