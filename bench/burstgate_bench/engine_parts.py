"""What the engine benchmark can measure by itself. Imports no mlx, so that a wrong name is refused at once."""

from enum import StrEnum


class Part(StrEnum):
    """In the order that they are measured in."""

    SINGLE = "single"
    BATCH = "batch"
    AUTO = "auto"
    FIRST = "first-token"
    GRPC = "grpc"
    HOST = "host"
