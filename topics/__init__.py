"""Topics: their names, their layout, and bringing a cluster in line with it."""
