"""What protocol=judge asks of an engine: one question a file, each answered by a Finding."""
