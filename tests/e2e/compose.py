"""The stack of compose.yaml in real containers, under load: `make e2e`.

Brings everything up from a copy of this checkout and a fresh `procession init`, sends runs of two tenants all the time,
and meanwhile scales, kills, restarts and upgrades. Every run must end as if nothing had happened, with one terminal
event. Then it backs up, destroys and restores as docs/operations.md says, and goes on with TLS and metrics, with all
services in one container, and with three NATS servers. The last line has the figures.
"""

import asyncio
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.e2e.backup import backed_up_and_restored
from tests.e2e.containers import confined, slim
from tests.e2e.engine import missing
from tests.e2e.load import Figures, answered_once, load, more_ended, say, some_runs
from tests.e2e.observed import observed
from tests.e2e.scenario import under_load
from tests.e2e.stack import Stack, documented


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
    await under_load(stack, figures)
    stack.environment["PROCESSION_VERSION"] = f"{stack.version}-next"
    with figures.phase("back up, destroy, restore"):
        await backed_up_and_restored(stack, figures)
    with figures.phase("with TLS and metrics"):
        await encrypted_and_observed(stack, figures)
    with figures.phase("all services in one container, killed"):
        await together(stack, figures)
    with figures.phase("three NATS servers, one killed"):
        await clustered(stack, figures)


async def encrypted_and_observed(stack: Stack, figures: Figures) -> None:
    """The overrides of compose.yaml for TLS and for metrics."""
    await stack.shell("".join(documented("TLS")[:1]))
    files = ("compose.yaml", "compose.tls.yaml", "infra/observability/compose.yaml", "tests/e2e/compose.yaml")
    stack.environment |= {"COMPOSE_FILE": ":".join(files), "PROCESSION_VERSION": f"{stack.version}-observed"}
    await stack.compose("build", "--quiet")
    await stack.up()
    for server, question in (("redis", "redis-cli ping 2>&1 || true"),):
        told = await stack.compose("exec", "-T", server, "sh", "-c", question)
        figures.expect("NOAUTH" not in told, f"{server} answers without TLS: {told}")
    stack.scheme = "tls"
    runs = await some_runs(stack, figures)
    figures.expect(bool(runs), "nothing ran over TLS")
    await observed(stack, figures)
    stack.scheme = "nats"


async def together(stack: Stack, figures: Figures) -> None:
    """The container of all services, from empty volumes; it dies once under load."""
    await stack.down()
    stack.environment |= {"COMPOSE_FILE": "compose.yaml", "PROCESSION_VERSION": stack.version}
    await stack.compose("build", "--quiet", "together")
    await stack.up("together", "demo-model")
    async with load(stack, figures) as runs:
        await more_ended(runs)
        await stack.compose("kill", "together")
        await stack.up("--no-recreate", "together")
    await answered_once(stack, runs, figures)


async def clustered(stack: Stack, figures: Figures) -> None:
    """The override for three NATS servers, from empty volumes; each dies once under load."""
    await stack.down()
    stack.environment |= {
        "COMPOSE_FILE": "compose.yaml:compose.cluster.yaml",
        "PROCESSION_VERSION": stack.version,
    }
    await stack.up()
    async with load(stack, figures) as runs:
        await more_ended(runs)
        for server in ("nats-2", "nats-3"):
            await stack.compose("kill", server)
            await more_ended(runs)
            await stack.up("--no-recreate")
    await answered_once(stack, runs, figures)


async def main() -> int:
    """Runs everything; 1 when something was lost, answered twice, or did not start."""
    if why := await missing():
        say(f"{why} `make e2e-embedded` runs the same scenarios on embedded processes.")
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
            await stack.remove()
    return figures.told()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
