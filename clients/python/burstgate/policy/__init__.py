"""Generated stubs."""
