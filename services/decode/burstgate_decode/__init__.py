"""The decode service: holds a target and a drafter, and streams tokens over gRPC."""
