"""A run is complete, resumable and honest about what it holds."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parse_engine import (
    CalibrationError,
    Engine,
    InvalidRequestError,
    ParseConfig,
    UnsupportedModelError,
    bench,
)
from parse_engine.bench import checks, measure, run
from parse_engine.bench.forms import Item
from parse_engine.bench.methods import METHODS
from parse_engine.bench.methods.job import Answer, Job
from parse_engine.bench.store import Store
from parse_engine.bench.tasks import Task
from parse_engine.cli import main as cli
from tests.calibrations import calibrated
from tests.scripted import scripted
from tests.tiny_kinds import kind_model
from tests.tiny_models import tiny_model

LINES = [{"prompt": f"Say {word}.", "answer": word} for word in ("this", "that", "so")]


@pytest.fixture
def argv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the command of a run on tiny models."""

    def tiny(parser: Any, args: Any, config: ParseConfig) -> Engine:
        return Engine(tiny_model(), tiny_model(seed=1), config)

    monkeypatch.setattr(run, "open_engine", tiny)
    tasks = tmp_path / "own.jsonl"
    tasks.write_text("".join(json.dumps(line) + "\n" for line in LINES), encoding="utf-8")
    return [
        *("run", "--tasks", str(tasks), "--out", str(tmp_path / "out")),
        *("--limit", "2", "--max-new-tokens", "24"),
    ]


def results(argv: list[str]) -> list[dict[str, Any]]:
    path = Path(argv[argv.index("--out") + 1]) / "results.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_all_methods_answer_every_item_and_the_report_shows_them(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    others = ["parse:accept_prob", "parse:accept_prob@0.0001", "cascade:min_prob"]
    argv += ["--methods", ",".join(["all", *others]), "--threshold", "0.3,0.9"]
    assert bench.main(argv) == 0
    shown = capsys.readouterr().out
    rows = results(argv)
    labels = [name for name in METHODS if name != "parse"] + ["parse@0.3", "parse@0.9", *others]
    assert len(rows) == 2 * len(labels)
    for number in (0, 1):  # item by item, another method first each time
        some = rows[number * len(labels) : (number + 1) * len(labels)]
        assert len({row["item"] for row in some}) == 1
        assert {row["method"] for row in some} == set(labels)
    assert rows[0]["method"] != rows[len(labels)]["method"]
    for row in rows:
        assert row["seconds"] >= sum(row["stages"][name] for name in ("draft", "read", "write"))
        assert row["first_s"] is None or row["first_s"] <= row["seconds"]
        assert row["correct"] is False
        assert row["fault"].startswith("it is not '")
        assert (row["prefill_s"] is not None) == row["method"].startswith("parse")
    alone = {row["item"]: row["text"] for row in rows if row["method"] == "target"}
    assert all(row["text"] == alone[row["item"]] for row in rows if row["method"] == "assisted")

    page = (Path(argv[argv.index("--out") + 1]) / "report.html").read_text(encoding="utf-8")
    for label in labels:
        assert f"| own | {label} | 2 |" in shown
        assert f"<td>{label}</td>" in page
    assert "PARSE is not lossless" in shown
    assert "PARSE is not lossless" in page
    assert "of the ideal speed" in page
    for verdict in ("p_correct", "accept_prob"):
        assert f'aria-label="own: {verdict}"' in page  # as its threshold varies
    assert "parse:accept_prob beside sequential, which accepts by p_correct from 0.3 on" in shown
    assert "src=" not in page
    assert "href=" not in page
    for title in ("Speedup", "Accuracy", "threshold varies", "by position", "time goes"):
        assert title in page


def test_an_interrupted_run_goes_on_where_it_was(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, count = measure.measure, 0

    def interrupted(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(run, "measure", interrupted)
    assert cli(["bench", *argv]) == 130
    assert "same command" in capsys.readouterr().err
    begun = results(argv)
    assert len(begun) == 2

    path = Path(argv[argv.index("--out") + 1]) / "results.jsonl"
    with path.open("a", encoding="utf-8") as out:
        out.write('{"task": "own", "it')  # the power went
    assert bench.main(argv) == 0
    rows = results(argv)
    assert rows[:2] == begun
    assert len({(row["item"], row["method"]) for row in rows}) == len(rows) == 6
    done = count
    assert bench.main(argv) == 0
    assert (count, results(argv)) == (done, rows)  # nothing left to do


@pytest.mark.parametrize(
    "change",
    [
        ["--limit", "1"],
        ["--methods", "target,draft"],
        ["--threshold", "0.5"],
        ["--max-new-tokens", "25"],
        ["--verify-order", "all"],
        ["--target", "a", "--draft", "b"],
        ["--chat-template-kwargs", '{"enable_thinking": false}'],
    ],
)
def test_a_folder_holds_one_measurement(
    argv: list[str], change: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(argv[argv.index("--out") + 1])
    out.mkdir()
    args = run.build_parser().parse_args(argv[1:])
    tasks = run.tasks_of(args)
    entries = run.parse_methods(args.methods)
    store = Store(out)
    store.open(run.manifest(args, tasks, entries, ParseConfig()))
    store.add({"task": "own", "item": "1", "method": "target", "error": "E"})
    monkeypatch.setattr(run, "open_engine", None)  # refused before a model is loaded
    with pytest.raises(InvalidRequestError, match="another measurement"):
        bench.main([*argv, *change])


def test_a_calibration_of_a_method_is_read_before_models_are_loaded(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, made = calibrated()
    file = tmp_path / "made.json"
    made.save(file)
    args = run.build_parser().parse_args([*argv[1:], "--methods", f"parse:{file}"])
    entries = run.parse_methods(args.methods)
    said = run.manifest(args, run.tasks_of(args), entries, ParseConfig())
    assert said["calibrations"] == {f"parse:{file}": made.as_dict()}
    file.write_text("{}")
    monkeypatch.setattr(run, "open_engine", None)
    with pytest.raises(CalibrationError):
        bench.main([*argv, "--methods", f"parse:{file}"])


def test_a_run_that_was_refused_leaves_its_folder_free(
    argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any) -> Engine:
        raise InvalidRequestError("No such model.", "Give another.")

    with monkeypatch.context() as patch:
        patch.setattr(run, "open_engine", missing)
        with pytest.raises(InvalidRequestError, match="No such model"):
            bench.main([*argv, "--target", "typo", "--draft", "b"])
    assert bench.main(argv) == 0


def test_what_cannot_go_together_is_refused_before_models_are_loaded(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, made = calibrated(threshold=0.4)
    file = tmp_path / "made.json"
    made.save(file)
    monkeypatch.setattr(run, "open_engine", None)
    for options in (
        ["--methods", f"parse:{file}@0.3"],
        ["--methods", "parse:min_prob", "--calibration", str(file)],
        ["--methods", f"parse:{file}", "--verdict", "min_prob"],
    ):
        with pytest.raises(InvalidRequestError, match="calibration"):
            bench.main([*argv, *options])


def test_a_folder_is_written_by_one_run_at_a_time(argv: list[str]) -> None:
    with (
        Store(Path(argv[argv.index("--out") + 1])).locked(),
        pytest.raises(InvalidRequestError, match="Another run"),
    ):
        bench.main(argv)


def test_a_torn_line_is_no_obstacle_to_a_report(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(argv) == 0
    shown = capsys.readouterr().out
    folder = Path(argv[argv.index("--out") + 1])
    with (folder / "results.jsonl").open("a", encoding="utf-8") as out:
        out.write('{"task": "own", "it')
    assert bench.main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == shown


def test_damaged_folders_are_refused_with_the_place(argv: list[str]) -> None:
    assert bench.main(argv) == 0
    folder = Path(argv[argv.index("--out") + 1])
    whole = (folder / "results.jsonl").read_text(encoding="utf-8")
    first = whole.splitlines()[0]
    changed = (first.replace('"seconds": ', '"seconds": 1'), first.replace('"seconds"', '"second"'))
    for line in ("garbage", '{"a": 1}', "[]", "[" * 100_000, *changed):
        (folder / "results.jsonl").write_text(f"{whole}{line}\n", encoding="utf-8")
        for command in (argv, ["report", str(folder)]):
            with pytest.raises(InvalidRequestError, match="line 7 is damaged"):
                bench.main(command)
    (folder / "results.jsonl").write_text(whole, encoding="utf-8")
    for text, said in (
        ("{", "cannot be read"),
        ("[]", "no JSON object"),
        ("{}", "was changed"),
    ):
        (folder / "manifest.json").write_text(text, encoding="utf-8")
        with pytest.raises(InvalidRequestError, match=said):
            bench.main(["report", str(folder)])


def test_lines_of_another_measurement_are_refused(argv: list[str]) -> None:
    assert bench.main(argv) == 0
    store = Store(Path(argv[argv.index("--out") + 1]))
    row = next(iter(store.rows().values()))
    results = store.folder / "results.jsonl"
    whole = results.read_text(encoding="utf-8")
    changes = (
        ({"task": "other"}, "'other'"),
        ({"method": "b"}, "'b'"),
        ({"models": []}, "several"),
    )
    for change, said in changes:
        store.add({**row, **change})
        with pytest.raises(InvalidRequestError, match=f"has results of {said}"):
            bench.main(["report", str(store.folder)])
        results.write_text(whole, encoding="utf-8")
    results.unlink()
    results.mkdir()
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        bench.main(["report", str(store.folder)])


def test_figures_take_no_room_in_a_message(argv: list[str]) -> None:
    store = Store(Path(argv[argv.index("--out") + 1]))
    store.open({"long": "x" * 1000, "short": 1})
    store.add({"task": "own", "item": "1", "method": "target"})
    with pytest.raises(InvalidRequestError, match="long differs; short was 1 and is 2") as refused:
        store.open({"long": "y" * 1000, "short": 2})
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("name", ["manifest.json", "results.jsonl", "report.html"])
def test_folders_in_the_place_of_files_are_refused_at_once(argv: list[str], name: str) -> None:
    (Path(argv[argv.index("--out") + 1]) / name).mkdir(parents=True)
    with pytest.raises(InvalidRequestError, match=f"its {name} is a folder"):
        bench.main(argv)


def test_other_models_of_the_same_names_are_not_gone_on_with(
    argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench.main(argv) == 0
    path = Path(argv[argv.index("--out") + 1]) / "results.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
    monkeypatch.setattr(run, "open_engine", lambda *_: Engine(tiny_model(), tiny_model(seed=2)))
    with pytest.raises(InvalidRequestError, match="other models of these names"):
        bench.main(argv)


def test_a_prompt_that_does_not_fit_is_a_failure_of_its_item_only(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(argv[argv.index("--tasks") + 1])
    long = json.dumps({"prompt": "so " * 9000, "answer": "so"})
    path.write_text(f"{long}\n{path.read_text()}", encoding="utf-8")
    assert bench.main([*argv, "--limit", "4"]) == 0
    shown = capsys.readouterr().out
    assert "| own | target | 3 (+ 1 failed) |" in shown
    assert "ContextOverflowError" in shown


def test_a_report_of_an_unfinished_run_says_so(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(argv) == 0
    assert "Not finished" not in capsys.readouterr().out
    path = Path(argv[argv.index("--out") + 1]) / "results.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
    assert bench.main(["report", str(path.parent)]) == 0
    assert "Not finished: 4 of 6 answers." in capsys.readouterr().out


def test_places_that_cannot_hold_results_are_refused(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "in"):
        with pytest.raises(InvalidRequestError, match="cannot be written"):
            bench.main([*argv, "--out", str(place)])
    with pytest.raises(SystemExit):
        bench.main([*argv, "--out", ""])
    assert "name a folder" in capsys.readouterr().err
    for methods in ("", " , "):
        with pytest.raises(InvalidRequestError, match="Name some"):
            bench.main([*argv, "--methods", methods])


def test_what_fails_beside_the_clock_costs_a_figure_and_not_the_answer(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> float:
        raise RuntimeError("no memory left")

    monkeypatch.setattr(measure, "prefill_seconds", broken)
    monkeypatch.setitem(checks.CHECKERS, "exact", lambda _: broken)
    assert bench.main(argv) == 0
    shown = capsys.readouterr().out
    assert "| own | parse | 2 |" in shown
    assert "6 not checked, RuntimeError: no memory left: own 2 by " in shown
    assert "2 not timed against the ideal" in shown


def test_recurrent_targets_are_measured_too(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        run, "open_engine", lambda *_: Engine(kind_model("mamba2"), tiny_model(seed=1))
    )
    assert bench.main(argv) == 0
    assert "of the ideal speed" in capsys.readouterr().out
    with pytest.raises(UnsupportedModelError, match="Leave out the method"):
        bench.main([*argv, "--methods", "assisted", "--out", argv[argv.index("--out") + 1] + "2"])


def test_fallbacks_are_said(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_model(seed=1)
    silent = replace(model, network=deepcopy(model.network))
    silent.network.generation_config.eos_token_id = list(range(len(model.tokenizer)))
    monkeypatch.setattr(run, "open_engine", lambda *_: Engine(tiny_model(), silent))
    assert bench.main(argv) == 0
    shown = capsys.readouterr().out
    assert "2 answered by the target alone, the draft model wrote nothing" in shown


def test_each_method_goes_first_in_each_task() -> None:
    items = tuple(Item(str(n), ()) for n in range(6))
    tasks = [Task("a", items), Task("b", items), Task("c", items[:2])]
    entries = run.parse_methods("target,parse,draft")
    order = list(run.turns(tasks, entries))
    assert len(order) == 14 * 3
    firsts = order[::3]
    for task in tasks[:2]:
        first = [entry.name for of, _, entry in firsts if of is task]
        assert sorted(first) == sorted(["target", "parse", "draft"] * 2)


def test_results_without_a_manifest_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("{}\n")
    with pytest.raises(InvalidRequestError, match=r"no manifest"):
        Store(tmp_path).open({})
    with pytest.raises(InvalidRequestError, match="holds no measurement"):
        bench.main(["report", str(tmp_path)])


def test_what_fails_is_counted_and_asked_again(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(job: Job) -> Answer:
        if job.limit == 24:  # not in the warm-up
            raise RuntimeError("out of memory")
        return Answer("", 0, "stop")

    page = Path(argv[argv.index("--out") + 1]) / "report.html"
    with monkeypatch.context() as patch:
        patch.setitem(METHODS, "draft", METHODS["draft"].__class__(broken, "broken"))
        assert bench.main(argv) == 0
    shown = capsys.readouterr().out
    assert ">draft</text>" not in page.read_text(encoding="utf-8").partition("time goes")[2]
    assert "| own | draft | 0 (+ 2 failed) |" in shown
    assert "RuntimeError: out of memory" in shown
    assert bench.main(argv) == 0
    shown = capsys.readouterr().out
    assert "| own | draft | 2 |" in shown
    assert "out of memory" not in shown
    assert ">draft</text>" in page.read_text(encoding="utf-8").partition("time goes")[2]
    assert bench.main(["report", argv[argv.index("--out") + 1]]) == 0
    assert capsys.readouterr().out == shown


def test_a_method_that_cannot_work_is_refused_at_once(
    argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_model()
    monkeypatch.setattr(run, "open_engine", lambda *_: Engine(target, scripted(target, "Yes.")))
    with pytest.raises(InvalidRequestError, match="no other model drafts"):
        bench.main(argv)
    assert not (Path(argv[argv.index("--out") + 1]) / "results.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--threshold", "2"], "no list of numbers"),
        (["--threshold", "high"], "no list of numbers"),
        (["--limit", "0"], "whole number"),
        (["--skip", "-1"], "whole number"),
    ],
)
def test_wrong_options_are_usage_errors(
    argv: list[str], options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        bench.main([*argv, *options])
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_help_describes_methods_and_files(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["run", "--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in METHODS)
    assert "openai/human-eval" in shown
