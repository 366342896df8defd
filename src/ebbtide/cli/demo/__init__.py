"""The demonstration: one story through the public HTTP API, every step checked against its answers."""
