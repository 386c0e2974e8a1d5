"""`headrace bench`: speed and memory, as ratios within one run."""
