"""Models: where they come from, what they are, what they run on."""
