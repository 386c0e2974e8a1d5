"""What an operator runs: the command line, brokers, the demo, benchmarks."""
