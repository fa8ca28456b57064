"""What is being served once the models are loaded: the facts that responses and checks are made from."""

from collections.abc import Callable
from dataclasses import dataclass

from burstgate_decode.drafters.base import Drafter
from burstgate_decode.models.blas import BlasReport
from burstgate_decode.models.exactness import Exactness
from burstgate_decode.models.hardware import Hardware
from burstgate_decode.models.target import Target
from burstgate_policy.core.types import CostCell


@dataclass(frozen=True)
class LinkState:
    """How the policy service is seen from here."""

    connected: bool
    grants: int
    fallbacks: int
    dropped_steps: int


@dataclass(frozen=True)
class Serving:
    """The served pairing and what start-up measured of it."""

    target: Target
    drafter: Drafter | None
    no_drafter_because: str
    """Why there is no drafter, as the end of a sentence; empty with one."""
    draft_width: int
    hardware: Hardware
    blas: BlasReport
    mlx_version: str
    exactness: Exactness
    costs: tuple[CostCell, ...]
    link: Callable[[], LinkState | None]
    """None without a policy service."""
