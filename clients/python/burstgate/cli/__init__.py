"""The `burstgate` command."""
