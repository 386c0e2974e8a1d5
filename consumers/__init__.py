"""The reading side: the Kafka consumer, offsets, the assignor, results and replies."""
