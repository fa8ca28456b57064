"""Drafters: one file a kind, one protocol."""
