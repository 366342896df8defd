"""The demonstration: one story, played through the public HTTP API, every step checked against what the API answers."""
