"""The Avro schemas that go over the wire, as files."""
