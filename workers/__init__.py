"""The worker: from a polled record to a committed result."""
