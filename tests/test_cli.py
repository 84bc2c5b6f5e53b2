from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parse_engine import Engine, InvalidRequestError, ModelNotFoundError, ParseConfig
from parse_engine.cli import main
from parse_engine.cli_args import DEFAULT_QUESTION
from parse_engine.errors import FallbackWarning
from parse_engine.stats import CallStats
from parse_engine.types import (
    DraftProgress,
    Event,
    Generation,
    TextDelta,
    Usage,
    Verdicts,
    Verified,
)
from tests.calibrations import calibrated
from tests.tiny_folders import save_tiny

ROOT = Path(__file__).parent.parent
VERDICTS = Verdicts(
    *((5, 9), (2, 4), (0.9, 0.3), None, None, None, None, ("Correct", "Incorrect")),
    verdict=(0.9, 0.3),
    kind="p_correct",
)


class StandIn:
    """Answers at once, as an engine does, and remembers what it was asked."""

    def __init__(self, args: Namespace, config: ParseConfig) -> None:
        self.args, self.config = args, config
        self.target = SimpleNamespace(name="big")
        self.draft = SimpleNamespace(name="small")
        self.same_tokenizer = True
        self.calls: list[dict[str, Any]] = []
        self.messages: list[dict[str, str]] = []

    def stream(self, messages: list[dict[str, str]], **call: Any) -> Iterator[Event]:
        self.messages = messages
        self.calls.append(call)
        if call["mode"] == "target":
            yield TextDelta("good end", "regenerated")
            stats = CallStats(mode="target", regenerated_tokens=3, regenerate_s=1.0)
            yield Generation(
                "good end", "", "stop", Usage(3, 3), stats, None, (), "", "", "good end"
            )
            return
        yield DraftProgress(4)
        yield Verified(VERDICTS, 2, 4)
        yield TextDelta("hmm", "accepted", reasoning=True)
        yield TextDelta("good ", "accepted")
        yield TextDelta("end", "regenerated")
        stats = CallStats(mode="parse", drafted_tokens=4, accepted_tokens=2, threshold=0.8)
        yield Generation(
            "good end", "hmm", "stop", Usage(3, 3), stats, VERDICTS, (), "good bad!", "good ", "end"
        )

    def verify(self, messages: list[dict[str, str]], answer: str) -> Verdicts:
        self.messages = messages
        assert answer == "good bad!"
        return VERDICTS


class Opened(list[StandIn]):
    """Opens stand-ins and keeps them."""

    def __call__(self, args: Namespace, config: ParseConfig) -> Any:
        self.append(StandIn(args, config))
        return self[-1]


@pytest.fixture
def opened() -> Opened:
    return Opened()


def test_run_shows_the_question_the_models_and_the_view(
    opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--demo", "Why [b]?"], open_engine=opened) == 0
    out, err = capsys.readouterr()
    for shown in ("Why [b]?", "small", "big", "✓ good [0.90]", "✗ ...bad! [0.30!]", "+ ...end"):
        assert shown in out
    assert err == ""


def test_verdict_and_calibration_reach_the_engine(
    opened: Opened, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, made = calibrated()
    made.save(tmp_path / "made.json")
    for option, value in (
        ("--verdict", "min_prob"),
        ("--calibration", str(tmp_path / "made.json")),
    ):
        assert main(["run", "--demo", "q", option, value], open_engine=opened) == 0
    assert [engine.config.acceptance.kind for engine in opened] == ["min_prob", "calibrated"]
    assert opened[1].config.calibration == made
    out, _ = capsys.readouterr()
    assert "verdict min_prob, threshold" in out
    assert "verdict calibrated, threshold 0.4" in out
    (tmp_path / "made.json").write_text("{}")
    argv = ["run", "--demo", "q", "--calibration", str(tmp_path / "made.json")]
    assert main(argv, open_engine=opened) == 1
    assert "CalibrationError" in capsys.readouterr().err


def test_options_reach_the_engine(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["run", "q", "--target", "t", "--draft", "d", "--dtype", "float32"]
    argv += ["--local-files-only", "--threshold", "0.5", "--cut-at", "16", "--max-prefixes", "3"]
    argv += ["--layout", "quote", "--verify-order", "all", "--accept-rule", "longest"]
    argv += ["--mode", "draft", "--max-new-tokens", "9", "--temperature", "0.7", "--top-p", "0.9"]
    argv += ["--top-k", "5", "--seed", "1", "--stop", "a", "--stop", "b", "--system", "Be brief."]
    assert main([*argv, "--json"], open_engine=opened) == 0
    engine = opened[0]
    assert engine.config == ParseConfig(
        threshold=0.5,
        cut_at=16,
        max_prefixes=3,
        judge_layout="quote",
        verify_order="all",
        accept_rule="longest",
    )
    assert engine.calls == [
        {
            "mode": "draft",
            "max_new_tokens": 9,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 5,
            "seed": 1,
            "stop": ["a", "b"],
        }
    ]
    assert engine.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "q"},
    ]
    args = engine.args
    assert (args.target, args.draft, args.dtype, args.local_files_only) == (
        "t",
        "d",
        "float32",
        True,
    )


def test_arguments_of_the_chat_template_reach_both_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, draft = save_tiny(tmp_path / "target"), save_tiny(tmp_path / "draft", seed=1)
    opened: list[Engine] = []

    def judge(engine: Engine, *args: Any, **options: Any) -> Verdicts:
        opened.append(engine)
        return VERDICTS

    monkeypatch.setattr(Engine, "verify", judge)
    answer = tmp_path / "answer.txt"
    answer.write_text("good bad!")
    argv = ["verify", str(answer), "--question", "q", "--json"]
    argv += ["--target", str(target), "--draft", str(draft), "--local-files-only"]
    assert main([*argv, "--chat-template-kwargs", '{"enable_thinking": false}']) == 0
    assert main(argv) == 0
    given = [
        [dict(model.template_kwargs) for model in (engine.target, engine.draft) if model]
        for engine in opened
    ]
    assert given == [[{"enable_thinking": False}] * 2, [{}, {}]]


def test_unset_options_are_left_to_the_engine(
    opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "q", "--demo", "--json"], open_engine=opened) == 0
    assert opened[0].config == ParseConfig()
    unset = {"temperature", "top_p", "top_k", "seed", "stop"}
    assert all(opened[0].calls[0][name] is None for name in unset)


def test_json_is_one_object_and_nothing_else(
    opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "q", "--demo", "--json"], open_engine=opened) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert list(answer) == ["text", "reasoning", "finish_reason", "usage", "stats", "verdicts"]
    assert answer["text"] == "good end"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert answer["stats"]["accepted_tokens"] == 2
    assert answer["verdicts"]["p_correct"] == [0.9, 0.3]
    assert err == ""


def test_stream_prints_the_answer_alone_and_the_figures_apart(
    opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "q", "--demo", "--stream"], open_engine=opened) == 0
    out, err = capsys.readouterr()
    assert out == "good end\n"
    assert "4 tokens drafted" in err


def test_compare_warms_up_then_alternates_greedily(
    opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "q", "--demo", "--repeat", "2"], open_engine=opened) == 0
    calls = opened[0].calls
    assert [call["mode"] for call in calls] == ["parse", "target"] * 3
    assert [call["max_new_tokens"] for call in calls] == [8, 8, 512, 512, 512, 512]
    assert {call["temperature"] for call in calls} == {0.0}
    out = " ".join(capsys.readouterr().out.split())
    for shown in ("warmed up", "median of 2 runs", "not lossless", "draft model drafts", "q"):
        assert shown in out


def test_compare_prints_json(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["compare", "q", "--demo", "--json", "--repeat", "3", "--temperature", "0.5"]
    assert main(argv, open_engine=opened) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["target_model"], result["draft_model"]) == ("big", "small")
    assert result["parse"]["text"] == result["target"]["text"] == "good end"
    assert len(result["parse"]["seconds"]) == len(result["target"]["seconds"]) == 3
    assert result["speedup"] > 0
    assert any("not lossless" in note for note in result["notes"])
    assert {call["temperature"] for call in opened[0].calls} == {0.5}


def test_verify_judges_a_file(
    opened: Opened, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answer.txt"
    file.write_text("good bad!", encoding="utf-8")
    argv = ["verify", str(file), "--question", "q", "--demo", "--threshold", "0.8"]
    assert main(argv, open_engine=opened) == 0
    assert opened[0].messages == [{"role": "user", "content": "q"}]
    out = capsys.readouterr().out
    assert "[0.90]" in out
    assert "[0.30!]" in out
    assert main([*argv, "--json"], open_engine=opened) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["threshold"] == 0.8
    assert result["verdicts"]["ends"] == [5, 9]


def test_verify_reads_standard_input(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("good bad!"))
    assert main(["verify", "-", "--question", "q", "--demo"], open_engine=opened) == 0


@pytest.mark.parametrize("argument", [[], ["-"]])
def test_the_question_comes_from_standard_input(
    argument: list[str],
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    assert main(["run", *argument, "--demo", "--json"], open_engine=opened) == 0
    assert opened[0].messages[0]["content"] == "from a pipe"


def test_without_a_question_on_a_terminal_there_is_an_example(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    assert main(["run", "--demo", "--json"], open_engine=opened) == 0
    assert opened[0].messages[0]["content"] == DEFAULT_QUESTION


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "COMMAND"),
        (["run", "q"], "--demo, which fetches"),
        (["run", "q"], "--target MODEL --draft MODEL"),
        (["run", "q", "--draft", "d"], "no models given"),
        (["run", "q", "--demo", "--target", "t"], "leave out --target"),
        (["run", "q", "--target", "t"], "no draft model given"),
        (["compare", "q", "--target", "t"], "no draft model given"),
        (["run", "q", "--demo", "--json", "--stream"], "not allowed with"),
        (["run", "q", "--demo", "--chat-template-kwargs", '{"a": 1}'], "leave out --target"),
        (["run", "q", "--target", "t", "--chat-template-kwargs", "[1]"], "'[1]' is no JSON object"),
        (["run", "q", "--target", "t", "--chat-template-kwargs", "a=1"], "'a=1' is no JSON object"),
        (["run", "q", "--demo", "--cut-at", "word"], "'word'"),
        (["run", "q", "--demo", "--cut-at", "0"], "'0'"),
        (["run", "q", "--demo", "--mode", "fast"], "'fast'"),
        (["compare", "q", "--demo", "--repeat", "0"], "'0'"),
        (["verify", "f", "--demo"], "--question"),
    ],
)
def test_wrong_usage_exits_with_2(
    argv: list[str], said: str, opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(argv, open_engine=opened)
    assert exit_.value.code == 2
    out, err = capsys.readouterr()
    assert said in " ".join(err.split())
    assert out == ""
    assert not opened


def test_an_error_is_one_line_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def missing(args: Namespace, config: ParseConfig) -> Any:
        raise ModelNotFoundError("There is no model 'x'.", "Check the name.")

    argv = ["run", "q", "--target", "x", "--draft", "y"]
    assert main(argv, open_engine=missing) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "ModelNotFoundError: There is no model 'x'. Check the name.\n"
    assert main([*argv, "--json"], open_engine=missing) == 1
    assert json.loads(capsys.readouterr().out) == {
        "error": {
            "type": "ModelNotFoundError",
            "problem": "There is no model 'x'.",
            "hint": "Check the name.",
        }
    }


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["run", "q", "--demo", "--threshold", "3"], "threshold is 3.0."),
        (["run", "  ", "--demo"], "The question is empty."),
        (["verify", "no/such/file", "--question", "q", "--demo"], "'no/such/file'"),
    ],
)
def test_bad_values_exit_with_1(
    argv: list[str], said: str, opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv, open_engine=opened) == 1
    assert said in capsys.readouterr().err
    assert not opened


def test_bytes_that_are_no_text_are_refused(
    opened: Opened, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answer.bin"
    file.write_bytes(b"\xff\xfe\x00")
    assert main(["verify", str(file), "--question", "q", "--demo"], open_engine=opened) == 1
    assert "UTF-8" in capsys.readouterr().err


def test_an_error_in_the_middle_of_a_call_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    class Failing(StandIn):
        def stream(self, messages: list[dict[str, str]], **call: Any) -> Iterator[Event]:
            yield TextDelta("good ", "accepted")
            raise InvalidRequestError("It broke.", "Mend it.")

    opener: Callable[..., Any] = Failing
    assert main(["run", "q", "--demo", "--stream"], open_engine=opener) == 1
    out, err = capsys.readouterr()
    assert out == "good "
    assert err == "InvalidRequestError: It broke. Mend it.\n"


def test_a_fallback_is_said_once_in_each_output(capsys: pytest.CaptureFixture[str]) -> None:
    class Falling(StandIn):
        def stream(self, messages: list[dict[str, str]], **call: Any) -> Iterator[Event]:
            warnings.warn("the draft broke", FallbackWarning, stacklevel=2)
            yield TextDelta("end", "regenerated")
            stats = CallStats(mode="parse", regenerated_tokens=1, fallback="the draft broke")
            yield Generation("end", "", "stop", Usage(3, 1), stats, None, (), "", "", "end")

    opener: Callable[..., Any] = Falling
    for option in ([], ["--stream"], ["--json"]):
        assert main(["run", "q", "--demo", *option], open_engine=opener) == 0
        out, err = capsys.readouterr()
        assert (out + err).count("the draft broke") == 1


def test_one_model_alone_needs_no_draft(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["run", "q", "--target", "t", "--mode", "target", "--json"]
    assert main(argv, open_engine=opened) == 0
    assert opened[0].args.draft is None


def test_demo_prints_the_two_folders(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = SimpleNamespace(target=Path("a/target"), draft=Path("a/draft"))
    monkeypatch.setattr("parse_engine.demo.ensure_demo_pair", lambda: pair)
    assert main(["demo"]) == 0
    assert capsys.readouterr().out == f"target {pair.target}\ndraft  {pair.draft}\n"
    assert main(["demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["draft"] == str(pair.draft)


class Endless(StandIn):
    def stream(self, messages: list[dict[str, str]], **call: Any) -> Iterator[Event]:
        while True:
            yield TextDelta("more and more text\n", "regenerated")


class Waiting(StandIn):
    def stream(self, messages: list[dict[str, str]], **call: Any) -> Iterator[Event]:
        yield TextDelta("so far\n", "regenerated")
        threading.Event().wait()


@contextmanager
def child(
    engine: str, *options: str, stdout: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """Run the command line beside the test, and no longer than that."""
    code = (
        "import sys; from tests.test_cli import *; "
        f"sys.exit(main(['run', 'q', '--demo', *{options!r}], open_engine={engine}))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_closed_pipe_ends_the_program_quietly() -> None:
    with child("Endless", "--stream") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "more and more text\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_pipe_closed_before_the_answer_is_as_quiet(options: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with child("StandIn", *options, stdout=writing) as process:
        os.close(writing)
        assert process.communicate()[1] == ""
        assert process.returncode == 141


def test_ctrl_c_ends_the_program_in_one_line() -> None:
    with child("Waiting", "--stream") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "so far\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "Interrupted.\n"
        assert process.wait() == 130


def test_help_and_usage_errors_load_no_torch() -> None:
    code = (
        "import sys; from parse_engine.cli import main\n"
        "for argv in (['compare', '--help'], ['run', 'q']):\n"
        "    try: main(argv)\n"
        "    except SystemExit: pass\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--threshold" in done.stdout


def test_python_m_runs_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "parse_engine", "run", "q"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2
    assert "no models given" in done.stderr


def test_models_says_what_a_model_can_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.tiny_models import tiny_model

    model = tiny_model("qwen3")
    model.network.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    assert main(["models", str(tmp_path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["models"]
    assert found["kind"] == "qwen3"
    assert (found["path"], found["layouts"]) == ("packed", ["brief", "quote"])
    assert found["labels"] == ["Correct", "Incorrect"]
    assert found["suffix_tokens"] > 0 < found["brief_tokens"]
    assert found["why"] == ""
    assert main(["models", str(tmp_path)]) == 0
    assert "packed" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["models"])
