"""`batch-parts.json`."""

from typing import Any

from procession.args import OutputStreamArgs, RequestContext
from procession.calls import abort
from procession.writers import NullWriter
from procession_services.processors.batch_parts import BatchParts
from tests.vectors.adapters.common import Bench, at_once, from_chunk, text_in, to_chunk


def _build(told: dict[str, Any]) -> BatchParts:
    return BatchParts.build({key: None if value == "<undefined>" else value for key, value in told.items()})


async def observe(vector: dict[str, Any]) -> dict[str, Any]:
    """What comes out at each step, and what is buffered then; or what a chain lets out."""
    given = vector["input"]
    if given.get("mode") == "runner":
        streamed = await Bench([_build(told) for told in vector["options"]["chain"]]).stream(given["chunks"])
        return {"emitted": streamed.out}
    return _direct(vector)[0]


def _direct(vector: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The observation, and all that came out."""
    processor, given = _build(vector["options"]), vector["input"]
    due: list[float | None] = [None]
    args = OutputStreamArgs(
        abort=abort,
        retry_count=0,
        request_context=RequestContext(),
        tracing_context={},
        state={},
        run_id="r1",
        part={"type": ""},
        stream_parts=[],
        message_list=Bench([processor]).context.messages,
        writer=NullWriter(),
        wake_after=lambda seconds: due.__setitem__(0, seconds),
    )
    out: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    for step in given["steps"]:
        if "wait" in step:
            steps.append({"waited": step["wait"]})
            if due[0] is not None and step["wait"] / 1000 >= due[0]:
                due[0] = None
                woken = [from_chunk(chunk) for chunk in processor.flush_stream(args)]
                out += woken
                steps[-1]["emitted"] = woken
            continue
        args.part = to_chunk(step)
        told = processor.process_output_stream(args)
        made = [from_chunk(chunk) for chunk in (told if isinstance(told, list) else [told] if told else [])]
        out += made
        shown: dict[str, Any] = {"returned": made[0] if made else None}
        if made[1:]:
            shown["reprocess"] = made[1] if len(made) == 2 else made[1:]
        steps.append(shown | {"buffered": [from_chunk(chunk) for chunk in args.own("batch")["parts"]]})
    observed: dict[str, Any] = {"perStep": steps}
    if "flushCalls" in given:
        flushed = [processor.flush(args.state) for _ in range(given["flushCalls"])]
        observed["flushed"] = [chunk and from_chunk(chunk) for chunk in flushed]
        out += [chunk for chunk in observed["flushed"] if chunk]
    out += [from_chunk(chunk) for chunk in processor.flush_stream(args)]
    return observed, out


def override(vector: dict[str, Any], observed: Any, differences: list[str]) -> str | None:
    """D-10 where all arrives, in order, and sooner than it did; D-50 and D-51 for what a joined chunk is."""
    given = vector["input"]
    steps = [step for step in given.get("chunks", given.get("steps", [])) if "wait" not in step]
    out = observed["emitted"] if "emitted" in observed else _direct(vector)[1]
    if not _arrived(steps, out):
        return None
    if at_once(observe(vector)) != observed:
        return None
    texts = [step for step in steps if step["type"] == "text-delta"]
    if len({step.get("id") for step in texts}) > 1:
        return "D-50"
    if any(set(step) - {"type", "id", "text", "runId"} for step in texts):
        return "D-51"
    return "D-10"


def _arrived(steps: list[dict[str, Any]], out: list[dict[str, Any]]) -> bool:
    """Whether the chunks that came out are those that went in, in order, with neighbouring text joined."""
    return _bare(steps) == _bare(out) and text_in(steps) == text_in(out)


def _bare(chunks: list[dict[str, Any]]) -> list[Any]:
    bare: list[Any] = []
    for chunk in chunks:
        if chunk["type"] != "text-delta":
            bare.append(chunk)
        elif bare and isinstance(bare[-1], tuple) and bare[-1][0] == chunk["id"]:
            bare[-1] = (chunk["id"], bare[-1][1] + chunk["text"])
        else:
            bare.append((chunk["id"], chunk["text"]))
    return bare
