"""What is agreed: messages, their Avro and JSON forms, packages, prompts, output schemas, settings and errors."""
