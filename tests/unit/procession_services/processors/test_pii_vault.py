"""Reversible masking: tokens for the model, values for the client; nothing in clear in store, state and reports."""

import json
from itertools import combinations

import pytest
from msgspec.structs import replace

from procession.errors import ProcessorError
from procession.testing import DictStore, ProcessorKit, ScriptedModels, environment
from procession_services.processors.core.pii.tokens import TOKEN, ConversationKey
from procession_services.processors.pii_detector import PIIDetector

KEY = b"0123456789abcdef0123456789abcdef"
MAIL, CARD = "john.doe@example.com", "4111 1111 1111 1111"
TOKENS = {"redactionMethod": "token"}
BOTH = {**TOKENS, "restore": {"answer": True, "toolArguments": True}}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def kit(
    options=BOTH,
    store=None,
    *,
    key=KEY,
    thread="t1",
    resource=None,
    now=lambda: 0.0,
    models=None,
    log=lambda _text: None,
):
    surroundings = environment(models or ScriptedModels(), store, now=now, log=log)
    given = {"MastraMemory": {"thread": {"id": thread}, "resourceId": resource}} if thread else {}
    return ProcessorKit(
        PIIDetector,
        options,
        environment=replace(surroundings, secret=lambda name: key if name == "masking-key" else None),
        request_context=given,
    )


async def masked(made, text):
    return (await made.input(text)).texts[-1]


async def test_a_value_has_the_same_token_all_through_its_conversation_and_no_other():
    store = DictStore()
    first = await masked(kit(store=store), f"{MAIL} {CARD} {MAIL}")
    tokens = TOKEN.findall(first)
    assert len(tokens) == 3
    assert tokens[0] == tokens[2] != tokens[1]
    assert tokens[0].startswith("<EMAIL_")
    assert tokens[1].startswith("<CREDIT-CARD_")
    assert await masked(kit(store=store), MAIL) == tokens[0]
    for other in (kit(thread="t2"), kit(thread=None), kit(key=KEY[::-1])):
        assert await masked(other, MAIL) not in tokens


async def test_somebody_elses_thread_of_the_same_id_has_tokens_of_its_own():
    store = DictStore()
    token = await masked(kit(store=store, resource="alice"), MAIL)
    bob = kit(store=store, resource="bob")
    prompt = [{"role": "user", "content": [{"type": "text", "text": f"is it {MAIL}?"}]}]
    assert (await bob.llm_request(prompt)).prompt == prompt
    assert (await bob.stream([f"It is {token}"])).text == f"It is {token}"


async def test_a_name_is_masked_in_the_prompt_also_where_no_space_parts_it_from_the_next_word():
    found = {"type": "name", "value": "田中太郎", "confidence": 0.9, "start": 0, "end": 4}
    told = json.dumps({"categories": [], "detections": [found]})
    made = kit({**BOTH, "model": "m/d"}, models=ScriptedModels([told]))
    token = await masked(made, "田中太郎")
    prompt = [{"role": "user", "content": [{"type": "text", "text": "私は田中太郎です"}]}]
    assert (await made.llm_request(prompt)).prompt[0]["content"][0]["text"] == f"私は{token}です"


async def test_values_come_back_in_the_answer_however_it_is_split():
    made = kit()
    token = await masked(made, MAIL)
    text = f"To {token}, {token[1:-1]}!"
    want = f"To {MAIL}, {MAIL}!"
    for i, j in combinations(range(len(text) + 1), 2):
        again = kit()
        await again.input(MAIL)
        assert (await again.stream([text[:i], text[i:j], text[j:]])).text == want
    assert (await made.stream(list(text))).text == want


async def test_values_come_back_in_a_later_run_of_the_conversation_until_the_tokens_end():
    clock, store = Clock(), None
    store = DictStore(clock)
    token = await masked(kit({**BOTH, "tokenTtl": 60}, store, now=clock), MAIL)
    assert (await kit(store=store, now=clock).stream([f"mail {token}"])).text == f"mail {MAIL}"
    clock.now = 61
    assert (await kit(store=store, now=clock).stream([f"mail {token}"])).text == f"mail {token}"


async def test_a_token_of_another_conversation_or_made_up_stays_a_token():
    store = DictStore()
    token = await masked(kit(store=store), MAIL)
    for text in (token, "<EMAIL_00000000>"):
        assert (await kit(store=store, thread="t2").stream([text])).text == text
    assert (await kit(store=store, key=KEY[::-1]).stream([token])).text == token


async def test_tool_arguments_get_values_when_configured():
    call = {"toolName": "send", "args": {"to": ["{}"], "n": 1, "deep": {"text": "hi {}, <EMAIL_00000000>"}}}
    for restore, value in (({"toolArguments": True}, MAIL), ({"answer": True}, None)):
        made = kit({**TOKENS, "restore": restore})
        token = await masked(made, MAIL)
        args = json.loads(json.dumps(call["args"]).replace("{}", token))
        out = await made.stream(["ok"], tool_calls=[{**call, "args": args}])
        told = value or token
        assert out.tool_calls[0]["args"] == {
            "to": [told], "n": 1, "deep": {"text": f"hi {told}, <EMAIL_00000000>"},
        }  # fmt: skip


async def test_the_model_sees_tokens_where_the_conversation_holds_values():
    made = kit()
    token = await masked(made, MAIL)
    call = {"type": "tool-call", "toolCallId": "1", "toolName": "send", "input": {"to": MAIL}}
    result = {
        "type": "tool-result",
        "toolCallId": "1",
        "toolName": "send",
        "output": {"value": f"id={MAIL}!"},
    }
    prompt = [
        {"role": "system", "content": f"Ask {MAIL}."},
        {"role": "assistant", "content": [{"type": "text", "text": f"I wrote to {MAIL}"}, call]},
        {"role": "tool", "content": [result]},
    ]
    out = await made.llm_request(prompt)
    assert json.dumps(out.prompt) == json.dumps(prompt).replace(MAIL, token)
    assert (await made.llm_request([{"role": "user", "content": "hi"}])).prompt == [
        {"role": "user", "content": "hi"}
    ]


FIELDS = ("id", "type", "role", "data", "url", "image", MAIL)


async def test_fields_of_tools_may_have_any_name():
    made = kit()
    token = await masked(made, MAIL)
    rows = [{name: MAIL} for name in FIELDS]
    call = {"type": "tool-call", "toolCallId": "1", "toolName": "send", "input": {"rows": rows}}
    outputs = [{"type": kind, "value": rows} for kind in ("json", "error-json")]
    results = [{"type": "tool-result", "toolCallId": "1", "toolName": "send", "output": o} for o in outputs]
    prompt = [{"role": "assistant", "content": [call]}, {"role": "tool", "content": results}]
    assert json.dumps((await made.llm_request(prompt)).prompt) == json.dumps(prompt).replace(MAIL, token)

    args = {"rows": [{name: token} for name in FIELDS[:-1]]}
    out = await made.stream([], tool_calls=[{"toolName": "send", "args": args}])
    assert out.tool_calls[0]["args"] == {"rows": [{name: MAIL} for name in FIELDS[:-1]]}
    assert MAIL not in json.dumps((await made.output_result()).messages)


async def test_what_is_no_text_of_a_prompt_stays_as_it_is():
    made = kit()
    await masked(made, MAIL)
    files = [{"type": "file", "data": MAIL}, {"type": "image", "url": MAIL}]
    shown = {"type": "content", "value": [{"type": "media", "data": MAIL}]}
    result = {"type": "tool-result", "toolCallId": MAIL, "toolName": MAIL, "output": shown}
    prompt = [{"role": "user", "content": files}, {"role": "tool", "content": [result]}]
    assert (await made.llm_request(prompt)).prompt == prompt


@pytest.mark.parametrize("options", [BOTH, TOKENS])
async def test_the_result_is_what_the_client_got(options):
    made = kit(options)
    token = await masked(made, MAIL)
    streamed = await made.stream([f"to {token} or {CARD}"])
    told = MAIL if options is BOTH else token
    assert streamed.text.startswith(f"to {told} or <CREDIT-CARD_")
    out = await made.output_result()
    assert out.messages[-1]["content"]["parts"][0]["text"] == streamed.text
    assert len(made.violations) == 2


async def test_without_restoring_the_answer_values_of_tool_calls_are_masked_where_they_are_kept():
    made = kit({**TOKENS, "restore": {"toolArguments": True}})
    token = await masked(made, MAIL)
    await made.stream([f"to {token}"], tool_calls=[{"toolName": "send", "args": {"to": token}}])
    out = await made.output_result()
    assert MAIL not in json.dumps(out.messages)


async def test_what_the_model_leaks_does_not_come_back():
    store = DictStore()
    made = kit(store=store)
    out = await made.stream([f"his card is {CARD}"])
    [token] = TOKEN.findall(out.text)
    assert (await kit(store=store).stream([token])).text == token


async def test_nothing_is_in_clear_in_store_state_reports_or_log():
    logs: list[str] = []
    store = DictStore()
    made = kit(store=store, log=logs.append)
    token = await masked(made, f"{MAIL} and {CARD}")
    await made.stream([f"about {token}"])
    await made.output_result()
    seen = [str(store._values), json.dumps(made.context.states), str(made.violations), str(logs)]
    for secret in (MAIL, CARD, "john", "4111", KEY.decode()):
        assert all(secret not in each for each in seen)
    assert store._values
    assert made.violations
    [key] = store._values
    assert key == "pii-detector:tokens:thread:t1:t1"


async def test_what_was_masked_before_a_step_still_counts_after_it():
    made = kit()
    token = await masked(made, MAIL)
    for _ in range(2):
        assert (await made.stream([token])).text == MAIL


@pytest.mark.parametrize(("key", "told"), [(None, "is missing"), (b"short", "has 5 bytes")])
async def test_without_a_key_nothing_happens_but_a_clear_error(key, told):
    made = kit(key=key)
    with pytest.raises(ProcessorError, match=f"{told}.*PROCESSION_SECRETS_DIR"):
        await made.input(MAIL)
    with pytest.raises(ProcessorError, match=told):
        await kit(key=key).stream([MAIL])


async def test_the_model_stage_masks_too_and_never_sees_what_was_restored():
    detection = {"type": "name", "value": "Alice", "confidence": 0.9, "start": 0, "end": 5}
    found, nothing = (json.dumps({"categories": [], "detections": each}) for each in ([detection], []))
    models = ScriptedModels(lambda request: found if "Alice" in str(request.prompt) else nothing)
    made = kit({**BOTH, "model": "m/d"}, models=models)
    token = await masked(made, "Alice here")
    assert token.startswith("<NAME_")
    [token] = TOKEN.findall(token)
    count = len(models.requests)
    out = await made.stream([f"Hello {token}, ", "welcome."])
    assert out.text == "Hello Alice, welcome."
    assert "Alice" not in str(models.requests[count:])


def test_equal_beginnings_of_tokens_do_not_mix_values_up():
    key = ConversationKey(KEY, "tenant", "c")
    short, middle, long = key.tokens("email", MAIL)
    assert middle.startswith(short)
    assert long.startswith(middle)
    assert key.unseal(short, key.seal(short, MAIL)) == MAIL
    assert key.unseal(middle, key.seal(short, MAIL)) is None
    assert ConversationKey(KEY, "other", "c").unseal(short, key.seal(short, MAIL)) is None


def test_names_of_types_and_broken_text_make_tokens_too():
    key = ConversationKey(KEY, "t", "c")
    for kind in ("Badge number!", "2fa", "名前", "x" * 80):
        token = key.tokens(kind, "\ud800")[0]
        assert TOKEN.fullmatch(f"<{token}>")
        assert key.unseal(token, key.seal(token, "\ud800")) == "\ud800"
