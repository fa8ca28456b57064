"""Decides when a lane speculates and how wide: pure functions and state machines of measured numbers.

No clock, no I/O, no environment and no randomness: everything comes in as an argument, so the same
sequence of inputs always gives the same decisions and any of them can be replayed.
"""
