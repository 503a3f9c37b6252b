"""The stack of compose.yaml in real containers, under load: `make e2e`.

Brings everything up from a copy of this checkout and a fresh `procession init`, sends runs of two tenants all the time,
and meanwhile scales, kills, restarts and upgrades. Every run must end as if nothing had happened, with one terminal
event. Then it backs up, destroys and restores as docs/operations.md says, and goes on with TLS and metrics, and with
three NATS servers. The last line has the figures.
"""

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.e2e.backup import backed_up_and_restored
from tests.e2e.containers import confined, slim
from tests.e2e.load import Figures, answered_once, load, say, some_runs
from tests.e2e.observed import observed
from tests.e2e.stack import COMPOSED, ROOT, SERVERS, Stack, command, documented

STANDINS: Final = ROOT.parent / "shared" / "tools" / "standin-images"
STOP_SECONDS: Final = 30.0


async def scenario(stack: Stack, figures: Figures) -> None:
    """All of it, from the first start."""
    with figures.phase("build"):
        await stack.compose("build", "--quiet")
    with figures.phase("up"):
        await stack.up()
    with figures.phase("look into images and containers"):
        sizes = await slim(stack, figures)
        await confined(stack, figures)
    say(f"images, MB: {json.dumps(sizes)}")
    async with load(stack, figures) as runs:
        with figures.phase("steady"):
            await asyncio.sleep(10)
        await scaled(stack, figures)
        await killed(stack, figures)
        await restarted(stack, figures)
        with figures.phase("upgrade every service"):
            for service in COMPOSED:
                await upgraded(stack, service, figures)
        stack.environment["PROCESSION_VERSION"] = "e2e-next"
    await answered_once(stack, runs, figures)
    with figures.phase("back up, destroy, restore"):
        await backed_up_and_restored(stack, figures)
    with figures.phase("with TLS and metrics"):
        await encrypted_and_observed(stack, figures)
    with figures.phase("three NATS servers, one killed"):
        await clustered(stack, figures)


async def scaled(stack: Stack, figures: Figures) -> None:
    """Up, with some of the many killed, and down."""
    with figures.phase("scale output-processors to 4"):
        await stack.up("--no-recreate", "--scale", "output-processors=4")
    with figures.phase("kill two output-processors"):
        for container in (await stack.containers("output-processors"))[:2]:
            await command("docker", "kill", container)
        await asyncio.sleep(5)
    with figures.phase("scale output-processors to 1"):
        await stack.up("--no-recreate", "--scale", "output-processors=1")


async def killed(stack: Stack, figures: Figures) -> None:
    """The only replica of each service dies, and Docker starts it again; then the servers die."""
    for service in COMPOSED:
        with figures.phase(f"crash {service}"):
            (container,) = await stack.containers(service)
            # Everything but the container's first process, which ends with its child.
            await command("docker", "exec", container, "sh", "-c", "kill -9 -1 || true")
            await _started_again(stack, container)
    for server in SERVERS:
        with figures.phase(f"kill {server}"):
            await stack.compose("kill", server)
            await stack.up("--no-recreate")


async def _started_again(stack: Stack, container: str) -> None:
    async with asyncio.timeout(60):
        while not (await stack.inspect(container))[0]["RestartCount"]:  # noqa: ASYNC110 - Docker changes it
            await asyncio.sleep(0.1)
    await stack.health(container, "healthy")


async def restarted(stack: Stack, figures: Figures) -> None:
    """The servers stop in peace; without NATS nobody says that it is ready."""
    for server in SERVERS:
        with figures.phase(f"restart {server}"):
            await stack.compose("restart", server)
            await stack.up("--no-recreate")
    with figures.phase("away: nats"):
        (container,) = await stack.containers("input-processors")
        await stack.compose("stop", "nats")
        await stack.health(container, "unhealthy")
        await stack.up("--no-recreate")


async def upgraded(stack: Stack, service: str, figures: Figures) -> None:
    """A rolling upgrade: the new version joins, then the old one is told to stop."""
    image = f"procession-{service}"
    await command("docker", "tag", f"{image}:e2e", f"{image}:e2e-next")
    (old,) = await stack.containers(service)
    await stack.up(
        "--no-deps", "--no-recreate", "--scale", f"{service}=2", service, PROCESSION_VERSION="e2e-next"
    )
    asked = time.monotonic()
    await command("docker", "stop", old)
    took = time.monotonic() - asked
    figures.stopping = max(figures.stopping, round(took, 1))
    code = (await stack.inspect(old))[0]["State"]["ExitCode"]
    figures.expect(
        code == 0 and took < STOP_SECONDS, f"{service} ended with {code}, {took:.1f} s after it was told to"
    )
    await command("docker", "rm", old)


async def encrypted_and_observed(stack: Stack, figures: Figures) -> None:
    """The overrides of compose.yaml for TLS and for metrics."""
    await stack.shell("".join(documented("TLS")[:1]))
    files = ("compose.yaml", "compose.tls.yaml", "infra/observability/compose.yaml", "tests/e2e/compose.yaml")
    stack.environment |= {"COMPOSE_FILE": ":".join(files), "PROCESSION_VERSION": "e2e-observed"}
    await stack.compose("build", "--quiet", *COMPOSED, "prometheus")
    await stack.up(*COMPOSED, "demo-model", "prometheus")
    for server, question in (("redis", "redis-cli ping 2>&1 || true"),):
        told = await stack.compose("exec", "-T", server, "sh", "-c", question)
        figures.expect("NOAUTH" not in told, f"{server} answers without TLS: {told}")
    stack.scheme = "tls"
    runs = await some_runs(stack, figures)
    figures.expect(bool(runs), "nothing ran over TLS")
    await observed(stack, figures)
    stack.scheme = "nats"


async def clustered(stack: Stack, figures: Figures) -> None:
    """The override for three NATS servers, from empty volumes; each dies once under load."""
    await stack.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")
    stack.environment |= {"COMPOSE_FILE": "compose.yaml:compose.cluster.yaml", "PROCESSION_VERSION": "e2e"}
    await stack.up()
    async with load(stack, figures) as runs:
        await asyncio.sleep(5)
        for server in ("nats-2", "nats-3"):
            await stack.compose("kill", server)
            await asyncio.sleep(5)
            await stack.up("--no-recreate")
    await answered_once(stack, runs, figures)


async def ready() -> str | None:
    """Why containers cannot run here; None when they can. Stand-in images are made where nothing can be pulled."""
    if STANDINS.exists():
        with contextlib.suppress(RuntimeError):
            await command(str(STANDINS), "--from", "compose.yaml", "infra/Dockerfile")
    try:
        await command("docker", "info")
        await command("docker", "compose", "version")
    except (RuntimeError, OSError) as error:
        return str(error)
    return None


async def main() -> int:
    """Runs everything; 1 when something was lost, answered twice, or did not start."""
    if why := await ready():
        say(
            f"{why}\nDocker does not run here; `make e2e-embedded` runs the same scenarios on embedded processes."
        )
        return 1
    figures = Figures()
    with TemporaryDirectory(prefix="procession-e2e-") as directory:
        stack = Stack(Path(directory))
        await stack.init()
        try:
            await scenario(stack, figures)
        except Exception as error:  # noqa: BLE001 - told with what the containers said
            figures.wrong.append(f"{error!r}")
            say(await stack.compose("ps", "-a"))
            say(await stack.compose("logs", "--tail", "20"))
        finally:
            await stack.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")
    for wrong in figures.wrong:
        say(f"wrong: {wrong}")
    told = {
        "runs": figures.runs, "wrong": len(figures.wrong), "chunks": figures.chunks, "resets": figures.resets,
        "slowestRun": round(figures.slowest, 1), "slowestStop": figures.stopping, "seconds": figures.seconds,
    }  # fmt: skip
    say(json.dumps(told))
    return 1 if figures.wrong or not figures.runs else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
