"""Tools: offered, chosen, enforced, read, and never reported when half written."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any, Literal, TypedDict

import pytest
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel

from parse_engine import Engine, ParseConfig
from parse_engine import errors as parse
from parse_engine.backends.model import Model
from parse_integrations.call_reader import CallReader, rewrite_calls
from parse_integrations.langchain import ChatParse, ToolFormat
from parse_integrations.tool_formats import FORMATS, format_of
from tests.langchain.llms import LINES, replying, saying, undecided
from tests.scripted import scripted, with_tokenizer
from tests.tiny_models import tiny_model

Level = Literal["low", "high"]


def pick(level: Level, size: Literal[1, 2]) -> str:
    """Pick one."""
    return f"{level}{size}"


class Paint(BaseModel):
    """Paint it."""

    color: Literal["red", "green"]


class Move(TypedDict):
    """Move it."""

    where: Literal["left", "right"]


@tool
def stay() -> str:
    """Stay there."""
    return "stayed"


TOOLS: list[Any] = [pick, Paint, Move, stay]


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("template", ["qwen2.5", "qwen3", "mistral_v7", "llama3"])
@pytest.mark.parametrize("name", ["pick", "Paint", "Move", "stay"])
def test_a_named_tool_is_called_whatever_the_models_would_write(
    name: str, template: str, threshold: float
) -> None:
    target, draft = tiny_model(template=template, seed=0), tiny_model(template=template, seed=1)
    llm = ChatParse(engine=Engine(target, draft), threshold=threshold, max_tokens=200)
    answer = llm.bind_tools(TOOLS, tool_choice=name).invoke("Hi")
    (call,) = answer.tool_calls
    assert call["name"] == name
    if name == "pick":
        assert call["args"]["level"] in ("low", "high")
        assert call["args"]["size"] in (1, 2)
    if name == "stay":
        assert call["args"] == {}
    assert answer.text == ""
    assert answer.response_metadata["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("form", ["hermes", "mistral", "llama3_json"])
@pytest.mark.parametrize("choice", ["any", "required", True, {"type": "any"}])
def test_any_tool_is_called(form: str, choice: Any) -> None:
    llm = undecided(max_tokens=300, tool_format=form)
    bound = llm.bind_tools(TOOLS, tool_choice=choice)
    (call,) = bound.invoke("Hi").tool_calls
    assert call["name"] in ("pick", "Paint", "Move", "stay")


def test_draft_and_target_of_different_families_agree_on_a_forced_call() -> None:
    target, draft = tiny_model(template="qwen2.5"), tiny_model(template="llama3", seed=1)
    llm = ChatParse(engine=Engine(target, draft), threshold=0.0, max_tokens=200)
    answer = llm.bind_tools(TOOLS, tool_choice="pick").invoke("Hi")
    assert answer.tool_calls[0]["name"] == "pick"
    assert answer.response_metadata["parse_accepted_fraction"] == 1.0


HERMES_CALL = """<tool_call>
{"name": "pick", "arguments": {"level": "low", "size": 1}}
</tool_call>"""
LLAMA_CALL = '{"name": "pick", "parameters": {"level": "low", "size": 1}}'
CALL_OF = {
    "qwen2.5": HERMES_CALL,
    "llama3": LLAMA_CALL,
    "mistral_v7": '[TOOL_CALLS][{"name": "pick", "arguments": {"level": "low", "size": 1}}]',
    "smollm2": HERMES_CALL,  # its template knows no tools: it is told in words
}
SHOWN = {"llama3": '"parameters"', "mistral_v7": "[TOOL_CALLS]"}


def told_of_tools(template: str) -> Model:
    """Return a tiny model whose template shows tools, and how its family calls them."""
    model = tiny_model(template=template)
    if template not in SHOWN:
        return model
    tokenizer = deepcopy(model.tokenizer)
    shown = f"{{% if tools %}}{{{{ tools | tojson }}}}{SHOWN[template]}{{% endif %}}"
    tokenizer.chat_template = f"{tokenizer.chat_template}{shown}"
    return with_tokenizer(model, tokenizer)


@pytest.mark.parametrize("target", sorted(CALL_OF))
@pytest.mark.parametrize("draft", sorted(CALL_OF))
def test_calls_of_a_draft_of_another_family_are_written_in_the_targets_form(
    draft: str, target: str
) -> None:
    judge = told_of_tools(target)
    writer = scripted(told_of_tools(draft), CALL_OF[draft])
    llm = ChatParse(engine=Engine(judge, writer), threshold=0.0, max_tokens=200)
    answer = llm.bind_tools(TOOLS).invoke("Hi")
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("pick", {"level": "low", "size": 1})
    assert answer.text == ""
    assert answer.response_metadata["parse_accepted_fraction"] == 1.0
    assert "stay" in writer.tokenizer.decode(writer.seen[0]["ids"])  # it was told of the tools
    alone = llm.bind_tools(TOOLS).invoke("Hi", mode="draft")
    assert [each["args"] for each in alone.tool_calls] == [call["args"]]


@pytest.mark.parametrize("ended", [True, False])
def test_only_whole_calls_are_rewritten(ended: bool) -> None:
    tools = [convert_to_openai_tool(each) for each in TOOLS]
    half = '<tool_call>\n{"name": "pick", "argu'
    whole = HERMES_CALL
    hermes, llama = FORMATS["hermes"], FORMATS["llama3_json"]
    assert rewrite_calls(tools, hermes, llama, f"Well.\n{half}", ended) == (
        f"Well.\n{half}" if ended else "Well."
    )
    rewritten = rewrite_calls(tools, hermes, llama, f"{whole}\n{half}", False)
    assert rewritten == LLAMA_CALL
    assert rewrite_calls(tools, hermes, llama, "No call.", ended) == "No call."


def test_choice_none_offers_nothing() -> None:
    call = '<tool_call>\n{"name": "stay", "arguments": {}}\n</tool_call>'
    llm, prompts = replying(call, call)
    answer = llm.bind_tools(TOOLS, tool_choice="none").invoke("Hi")
    assert not answer.tool_calls
    assert answer.text == call
    assert "stay" not in prompts[0]
    assert llm.bind_tools(TOOLS, tool_choice="auto").invoke("Hi").tool_calls
    assert "stay" in prompts[1]


@pytest.mark.parametrize("choice", ["fly", {"type": "function", "function": {"name": "fly"}}])
def test_choice_of_a_tool_that_is_not_there_is_refused(choice: Any) -> None:
    with pytest.raises(parse.InvalidRequestError, match="fly"):
        saying(LINES).bind_tools(TOOLS, tool_choice=choice)


def test_parallel_calls_have_ids_of_their_own() -> None:
    call = '<tool_call>\n{"name": "stay", "arguments": {}}\n</tool_call>'
    answer = saying(f"{call}\n{call}\n{call}").bind_tools(TOOLS).invoke("Hi")
    assert len(answer.tool_calls) == 3
    assert len({call["id"] for call in answer.tool_calls}) == 3


CALL = '<tool_call>\n{"name": "pick", "arguments": {"level": "low", "size": 1}}\n</tool_call>'
STAY = '<tool_call>\n{"name": "stay", "arguments": {}}\n</tool_call>'
MARKS = {"m": '{"b\\" </tool_call> <tool_call>[ \\', "</tool_call>": ["<"]}
MARKED = f"<tool_call>{json.dumps({'name': 'pick', 'arguments': MARKS})}</tool_call>"


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off_is_never_reported(form: str, stream: bool) -> None:
    whole = {
        "hermes": CALL,
        "llama3_json": '{"name": "pick", "parameters": {"level": "low", "size": 1}}',
        "mistral": '[TOOL_CALLS][{"name": "pick", "arguments": {"level": "low", "size": 1}}]',
    }[form]
    model = tiny_model()
    ids = model.encode(whole)
    for count in range(12, len(ids), 5):
        llm = saying(whole, tool_format=form, max_tokens=count)
        bound = llm.bind_tools(TOOLS)
        if stream:
            chunks = list(bound.stream("Hi"))
            answer: Any = chunks[0]
            for chunk in chunks[1:]:
                answer = answer + chunk
                assert not answer.tool_calls
        else:
            answer = bound.invoke("Hi")
        assert not answer.tool_calls
        assert answer.response_metadata["finish_reason"] == "length"
        if "{" in whole[: len(model.tokenizer.decode(list(ids[:count])))]:
            shown = answer.text + "".join(c["args"] for c in answer.invalid_tool_calls)
            assert '{"' in shown
    (call,) = saying(whole, tool_format=form).bind_tools(TOOLS).invoke("Hi").tool_calls
    assert call["args"] == {"level": "low", "size": 1}


@pytest.mark.parametrize("step", [1, 4, 1000])
@pytest.mark.parametrize(
    ("form", "text", "said", "calls"),
    [
        ("hermes", f"Hm.\n{CALL}\n{CALL}", "Hm.", [("pick", {"level": "low", "size": 1})] * 2),
        ("hermes", CALL.replace(": 1", ': "1"'), "", [("pick", {"level": "low", "size": 1})]),
        ("hermes", "a < b <tool", "a < b <tool", []),
        ("hermes", f"{CALL}\n\nNow.", "Now.", [("pick", {"level": "low", "size": 1})]),
        ("hermes", f"\n{CALL}\n", "", [("pick", {"level": "low", "size": 1})]),
        ("hermes", f"one.\n\n{STAY}\n{STAY}\ntwo.\n", "one.\n\ntwo.\n", [("stay", {})] * 2),
        ("hermes", f"one.{STAY}two. {STAY}", "one.\ntwo.", [("stay", {})] * 2),
        ("hermes", "I like <tool_call> tags. \n", "I like <tool_call> tags. \n", []),
        ("hermes", "<tool_call>hello</tool_call> world", "<tool_call>hello</tool_call> world", []),
        ("hermes", f"A <tool_call>. {STAY}", "A <tool_call>.", [("stay", {})]),
        ("hermes", STAY.replace("{}", r'{"x": ["\ud83d", "\ud83d\ude00"]}'), "",
         [("stay", {"x": ["\ufffd", "\U0001f600"]})]),
        ("hermes", f"{MARKED}\nNow.", "Now.", [("pick", MARKS)]),
        ("hermes", f'"{STAY}" {MARKED}', '"\n"', [("stay", {}), ("pick", MARKS)]),
        ("hermes", '<tool_call>{"m": "x </tool_call>\n</tool_call> y', " y", [(None, None)]),
        ("hermes", '<tool_call>\n{"arguments": {}}\n</tool_call>', "", [(None, None)]),
        ("hermes", '<tool_call>{"name": "pick", "arguments": 3}</tool_call>', "", [("pick", None)]),
        ("hermes", '```json\n{"name": "stay", "arguments": {}}\n```', "", [("stay", {})]),
        ("hermes", '{"name": "stay", "arguments": {}}', "", [("stay", {})]),
        ("hermes", '{"name": "Bob", "arguments": {}}', '{"name": "Bob", "arguments": {}}', []),
        ("hermes", '{"name": [1], "arguments": {}}', '{"name": [1], "arguments": {}}', []),
        ("hermes", '{"name": "stay"}', '{"name": "stay"}', []),
        ("hermes", '```json\n{"name": "stay"} is it', '```json\n{"name": "stay"} is it', []),
        ("hermes", "```python\nx = 1\n```", "```python\nx = 1\n```", []),
        ("llama3_json", '{"name": "stay", "parameters": {}}', "", [("stay", {})]),
        (
            "llama3_json",
            '<|python_tag|>{"name": "stay", "parameters": {}}; {"name": "Paint", "parameters": {}}',
            "",
            [("stay", {}), ("Paint", {})],
        ),
        ("llama3_json", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
        ("llama3_json", '{"name": {}, "parameters": 3}', '{"name": {}, "parameters": 3}', []),
        ("llama3_json", 'It is {"name": "stay"}', 'It is {"name": "stay"}', []),
        ("mistral", '[TOOL_CALLS] [{"name": "stay", "arguments": {}}]', "", [("stay", {})]),
        ("mistral", "[TOOL_CALLS]stay[ARGS]{}[TOOL_CALLS]Paint[CALL_ID]x[ARGS]{}", "",
         [("stay", {}), ("Paint", {})]),
        ("mistral", "[TOOL_CALLS] [{'name'", "", [(None, None)]),
        ("mistral", "Not a [TOOL_CALLS] token", "Not a [TOOL_CALLS] token", []),
        ("mistral", '[TOOL_CALLS] [{"name": "pick"}, {"name": "stay", "arguments": 1}]', "",
         [("stay", None), ("pick", {})]),
    ],
)  # fmt: skip
def test_calls_are_read_as_they_come(
    form: str, text: str, said: str, calls: list[Any], step: int
) -> None:
    tools = [
        *saying(LINES).bind_tools([pick, Paint, stay]).kwargs["tools"],  # type: ignore[attr-defined]
    ]
    reader = CallReader(FORMATS[form], tools)
    pieces = []
    for start in range(0, len(text), step):
        pieces += reader.feed(text[start : start + step])
    pieces += reader.finish(ended=True)
    assert "".join(piece for piece in pieces if isinstance(piece, str)) == said
    found = [(p.name, p.arguments) for p in pieces if not isinstance(p, str)]
    assert found == calls


WRITTEN = (
    ("hermes", f"{CALL[:-14]}]\n</tool_call>"),
    ("hermes", CALL.replace("}}", "]}")),
    ("hermes", f"\t{CALL.replace('{', '[')}\n\n"),
    ("hermes", CALL[:50]),
    ("hermes", "<tool_call>\n"),
    ("llama3_json", '<|python_tag|> {"name": "stay", "parameters": 3} '),
    ("llama3_json", '<|python_tag|>\n{"name": "stay", "param'),
    ("mistral", "[TOOL_CALLS]  [3]"),
    ("mistral", "[TOOL_CALLS]stay[ARGS]{"),
)


@pytest.mark.parametrize("step", [1, 5, 1000])
@pytest.mark.parametrize(("form", "broken"), WRITTEN)
@pytest.mark.parametrize(("before", "after"), [("", ""), (" one.\n\n", "\n two. ")])
def test_what_is_no_call_comes_through_as_it_was_written(
    form: str, broken: str, before: str, after: str, step: int
) -> None:
    if form == "llama3_json":
        before = ""  # its calls are whole answers
    if not broken.rstrip().endswith("</tool_call>"):
        after = ""  # nothing marks their end
    text = f"{before}{broken}{after}"
    reader = CallReader(FORMATS[form], [convert_to_openai_tool(stay)])
    pieces = []
    for start in range(0, len(text), step):
        pieces += reader.feed(text[start : start + step])
    pieces += reader.finish(ended=True)
    assert "".join(piece if isinstance(piece, str) else piece.raw for piece in pieces) == text


def test_formats_are_read_off_the_templates() -> None:
    tokenizer = tiny_model().tokenizer
    assert format_of(tokenizer, ()) == FORMATS["hermes"]
    assert format_of(tiny_model(template="gemma2").tokenizer, ()) is None


def test_a_format_of_ones_own() -> None:
    spec = {
        "start_anchor_pattern": r"\Z",
        "fields": {
            "tool_calls": {"open": "CALL ", "close": " END", "repeats": True},
            "answer": {},
        },
    }
    own = ToolFormat(spec, ("CALL ",), (" END",), " ")
    text = 'Well. CALL {"name": "stay", "arguments": {}} END'
    answer = saying(text, tool_format=own).bind_tools(TOOLS).invoke("Hi")
    assert answer.text == "Well."
    assert answer.tool_calls[0]["name"] == "stay"
    forced = undecided(tool_format=own).bind_tools(TOOLS, tool_choice="Paint").invoke("Hi")
    assert forced.tool_calls[0]["name"] == "Paint"
    with pytest.raises(ValueError, match="hermes"):
        saying(LINES, tool_format="xml")


def test_thinking_comes_before_a_forced_call() -> None:
    model = tiny_model(template="qwen3_thinking")
    text = f"Hm.\n</think>\n\n{CALL}"
    engine = Engine(model, scripted(model, text), ParseConfig(threshold=0.0))
    answer = ChatParse(engine=engine).bind_tools(TOOLS, tool_choice="pick").invoke("Hi")
    assert answer.content_blocks[0]["type"] == "reasoning"
    assert answer.tool_calls[0]["args"] == {"level": "low", "size": 1}


@pytest.mark.parametrize("name", ["my tool", "погода", '"a" {b} \\'])
def test_tools_have_their_own_names(name: str) -> None:
    offered = [{"name": name, "description": "x", "parameters": {}}, stay]
    (call,) = undecided().bind_tools(offered, tool_choice=name).invoke("Hi").tool_calls
    assert call["name"] == name
    with pytest.raises(parse.InvalidRequestError, match="half a character"):
        undecided().bind_tools([{"name": "a\ud83d", "description": "x"}])


def test_unicode_survives_a_forced_call() -> None:
    schema = {
        "title": "greet",
        "description": "Greet.",
        "type": "object",
        "properties": {"name": {"enum": ["Zoë 日本語 😀"]}},
        "required": ["name"],
    }
    for chunk in undecided().bind_tools([schema], tool_choice="greet").stream("Hi"):
        if chunk.tool_call_chunks:
            (written,) = chunk.tool_call_chunks
            assert json.loads(written["args"] or "") == {"name": "Zoë 日本語 😀"}


def test_several_enforced_calls_where_they_are_allowed() -> None:
    text = "\n".join([CALL] * 3)
    model = tiny_model()
    for several in (True, False):
        draft = scripted(model, text if several else CALL)
        llm = ChatParse(engine=Engine(model, draft, ParseConfig(threshold=0.0)))
        bound = llm.bind_tools(TOOLS, tool_choice="any", parallel_tool_calls=several)
        assert len(bound.invoke("Hi").tool_calls) == (3 if several else 1)
        # the target, which writes from the first token on, keeps to the same rule
        alone = undecided(max_tokens=250).bind_tools(
            TOOLS, tool_choice="any", parallel_tool_calls=several
        )
        assert len(alone.invoke("Hi").tool_calls) >= 1
