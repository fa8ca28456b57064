"""Measures what speculation is worth, and checks that it changes no token."""
