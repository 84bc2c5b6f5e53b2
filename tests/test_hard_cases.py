"""Cases that broke once, or could."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from parse_engine import Engine, InvalidRequestError, ParseConfig
from parse_engine.backends.model import Model
from tests.scripted import scripted
from tests.tiny_models import tiny_model
from tests.tiny_tokenizers import chat_tokenizer

ASK = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    "setting",
    [
        {"use_cache": False},
        {"prompt_lookup_num_tokens": 3},
        {"cache_implementation": "dynamic"},
        {"return_dict_in_generate": True},
        {"stop_strings": ["x"]},
        {"penalty_alpha": 0.6},
        {"num_beams": 3},
        {"max_length": 5},
    ],
    ids=str,
)
def test_generation_config_of_a_model_does_not_break_writing(setting: dict[str, Any]) -> None:
    plain = tiny_model()
    wanted = Engine(plain).generate(ASK, max_new_tokens=12, mode="target").token_ids
    odd = Model("odd", deepcopy(plain.network), plain.tokenizer)
    for name, value in setting.items():
        setattr(odd.network.generation_config, name, value)
    engine = Engine(odd, scripted(odd, "The answer is so."), ParseConfig(threshold=1))
    assert engine.generate(ASK, max_new_tokens=12).token_ids == wanted
    assert engine.generate(ASK, max_new_tokens=12, mode="target").token_ids == wanted


@pytest.mark.parametrize("role", ["user", "system"])
def test_marks_of_thinking_in_the_prompt_open_nothing(role: str) -> None:
    model = tiny_model("qwen3", "qwen3")
    engine = Engine(model, scripted(model, "Hi there. Bye."), ParseConfig(threshold=0))
    answer = engine.generate([{"role": role, "content": "What does <think> do?"}, *ASK])
    assert (answer.text, answer.reasoning) == ("Hi there. Bye.", "")


def test_marks_of_thinking_inside_an_answer_are_text() -> None:
    model = tiny_model("qwen3", "qwen3")
    text = "The tag <think> opens thinking, </think> closes it."
    engine = Engine(model, scripted(model, text), ParseConfig(threshold=0))
    assert engine.generate(ASK).text == text


@pytest.mark.parametrize("special", ["<|im_end|>", "<|im_start|>", "<|endoftext|>"])
def test_text_that_spells_a_special_token_stays_text(special: str) -> None:
    target = tiny_model()
    text = f"A turn has {special} in it. STOP here"
    words = ("Correct", "Incorrect", " answ")
    other = Model("other", target.network, chat_tokenizer("chatml", words=words))
    ids = [i for c in text for i in other.tokenizer.encode(c, add_special_tokens=False)]
    engine = Engine(target, scripted(other, ids), ParseConfig(threshold=0))
    assert engine.generate(ASK, max_new_tokens=200).text == text
    assert engine.generate(ASK, max_new_tokens=200, stop="STOP").text == text[:-9]
    verdicts = engine.verify(ASK, text)
    assert verdicts.ends[-1] == len(text)
    assert engine.verify(ASK, special).ends == (len(special),)


class Endless(Model):
    """Writes special tokens, which have no text, until it is told to stop."""

    def write(self, *args: Any, on_token: Any, **kwargs: Any) -> tuple[int, ...]:
        silent = self.tokenizer.convert_tokens_to_ids("<|im_start|>")
        while not on_token(silent):
            pass
        return ()


async def test_cancelling_reaches_a_model_that_shows_nothing() -> None:
    target = tiny_model()
    engine = Engine(Endless("endless", target.network, target.tokenizer))
    task = asyncio.create_task(engine.agenerate(ASK, mode="target"))
    while not (calls := [t for t in threading.enumerate() if t.name == "parse-call"]):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for call in calls:  # or this never returns
        await asyncio.to_thread(call.join)


def test_program_that_ends_in_the_middle_of_a_stream_ends_well() -> None:
    program = (
        "from parse_engine import Engine\n"
        "from tests.tiny_models import tiny_model\n"
        "model = tiny_model()\n"
        "stream = Engine(model, model).stream([{'role': 'user', 'content': 'Hello'}],\n"
        "                                     max_new_tokens=3000, mode='target')\n"
        "next(stream)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "caf\udce9"},
        {"role": "user", "content": b""},
        {"role": "user", "content": []},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": np.array(["user"]), "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [{"f": object()}]},
    ],
    ids=str,
)
def test_odd_messages_are_refused(message: Any) -> None:
    target = tiny_model()
    with pytest.raises(InvalidRequestError):
        Engine(target).generate([message], mode="target")


def test_text_parts_are_joined_before_any_template_sees_them() -> None:
    target = tiny_model()
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    engine = Engine(target)
    one = engine.generate([{"role": "user", "content": parts}], max_new_tokens=5, mode="target")
    assert one.usage == engine.generate(ASK, max_new_tokens=5, mode="target").usage


@pytest.mark.parametrize("setting", ["threshold", "temperature", "top_p"])
def test_numbers_beyond_every_float_are_refused(setting: str) -> None:
    engine = Engine(tiny_model())
    with pytest.raises(InvalidRequestError):
        engine.generate(ASK, mode="target", **{setting: 10**400})


@pytest.mark.parametrize(
    "arguments", [(None,), ("x",), (tiny_model().network,), (tiny_model(), tiny_model(), {})]
)
def test_engines_of_something_else_are_refused(arguments: Any) -> None:
    with pytest.raises(InvalidRequestError):
        Engine(*arguments)


def test_stop_string_at_the_very_start_leaves_no_token() -> None:
    engine = Engine(tiny_model())
    free = engine.generate(ASK, max_new_tokens=8, mode="target")
    stopped = engine.generate(ASK, max_new_tokens=8, mode="target", stop=free.text[:2])
    assert (stopped.text, stopped.token_ids, stopped.usage.completion_tokens) == ("", (), 0)


def test_tiny_temperature_is_greedy() -> None:
    engine = Engine(tiny_model())
    greedy = engine.generate(ASK, max_new_tokens=8, mode="target", temperature=0)
    tiny = engine.generate(ASK, max_new_tokens=8, mode="target", temperature=1e-40, seed=1)
    assert tiny.token_ids == greedy.token_ids
