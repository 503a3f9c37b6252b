"""Where what `on_violation` was told is stored."""

from itertools import count

from procession.args import Violation
from procession.calls import ViolationSink
from procession.context import RunContext
from procession.processor import Hook
from procession_schemas import subjects
from procession_schemas.events import ProcessorViolation
from procession_schemas.work import WorkCommand
from procession_services.bus import Bus
from procession_services.processor_host.fitting import fitting_violation


def violation_sink(bus: Bus, command: WorkCommand, ctx: RunContext, place: str = "") -> ViolationSink:
    """Stores the violations of a command's processors; those of each `place` have ids of their own."""
    numbers = count(1)

    async def store(violation: Violation, hook: Hook, retry: bool) -> None:  # noqa: FBT001 - a callback's shape
        event = ProcessorViolation(
            run_id=command.run,
            tenant=command.tenant,
            agent=command.agent,
            processor_id=violation.processor_id,
            hook=hook.value,
            message=violation.message,
            detail=violation.detail,
            retry=retry,
            step=ctx.step_number,
        )
        subject = subjects.violation(command.tenant, violation.processor_id)
        *_, name = subject.split(".")  # the processor's, no longer than a header may be
        await bus.publish_stored(
            subject,
            fitting_violation(event, bus.fits),
            message_id=f"{command.id}{place}:{name}:{hook.value}:{next(numbers)}",
        )

    return store
