"""Remembers settled verdicts between runs: one interface, one kind of storage a module."""
