"""Moving a contract's traffic from one version to another, step by step, and back."""
