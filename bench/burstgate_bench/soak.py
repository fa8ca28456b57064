"""Random traffic at the limit for a while: `python -m burstgate_bench.soak`, or `make soak`.

Real services in processes of their own, on Unix sockets. The policy service is killed and started again now and
then. Exit codes: 0 if nothing broke, 1 if something did, 2 if the services did not start. The last line of the
output is one JSON object.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from burstgate_bench.policy_process import policy_in
from burstgate_bench.service_process import ServiceProcess, ServiceStartError
from burstgate_bench.soak_run import Soaked, soak

# The pairing is loaded, probed and priced first.
_START_TIMEOUT_S = 300.0
_ROWS = 8


def main(
    minutes: Annotated[float, typer.Option(min=0.1, max=600, help="How long callers come.")] = 30.0,
    callers: Annotated[int, typer.Option(min=1, max=1000, help="Callers at any time.")] = 20,
    outages: Annotated[float, typer.Option(min=0, max=60, help="Kills of the policy service a minute.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of what is asked and when things break.")] = 1,
) -> None:
    """Keeps all rows busy and the queue full with random requests, and says what broke.

    BURSTGATE_ variables choose the pairing and the rest, as for the decode service.
    """
    # By default it would end this process at once and leave the services running.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="burstgate-soak-") as name:
        folder = Path(name)
        policy = policy_in(folder)
        decode = ServiceProcess(
            "burstgate_decode",
            f"unix:{folder}/decode.sock",
            ["--policy-address", policy.address],
            folder / "decode.log",
            settings={
                "BURSTGATE_MAX_ACTIVE_ROWS": str(_ROWS),
                "BURSTGATE_MAX_QUEUED_ROWS": str(_ROWS),
                **{key: value for key, value in os.environ.items() if key.startswith("BURSTGATE_")},
            },
            start_timeout_s=_START_TIMEOUT_S,
        )
        try:
            policy.start()
            decode.start()
            soaked = asyncio.run(soak(decode, policy, minutes * 60.0, callers, outages / 60.0, seed, _say))
        except ServiceStartError as error:
            print(f"soak: {error}", flush=True)
            raise typer.Exit(2) from None
        finally:
            decode.stop()
            policy.stop()
        _show(soaked, folder / "decode.log")
    raise typer.Exit(1 if soaked.broken else 0)


def _say(sentence: str) -> None:
    print(sentence, flush=True)


def _show(soaked: Soaked, log: Path) -> None:
    for sentence in soaked.broken:
        print(sentence)
    if soaked.broken:
        print(log.read_text(errors="replace")[-4000:])
    print(json.dumps(soaked.line), flush=True)


if __name__ == "__main__":
    typer.run(main)
