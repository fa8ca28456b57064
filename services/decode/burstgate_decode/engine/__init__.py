"""The engine: from a request to rows, steps and tokens."""
