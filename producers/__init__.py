"""The writing side: the Kafka producer and its guarded transaction, and the client."""
