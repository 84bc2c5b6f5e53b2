"""What the package and its README promise to somebody who installs it."""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import parse_engine
from parse_engine import Engine, ParseConfig, ParseError, cli_calibrate
from parse_engine.bench import judge, run
from parse_engine.cli_args import build_parser
from tests.calibrations import calibrated
from tests.scripted import scripted
from tests.tiny_models import tiny_model

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MODULES = sorted((*ROOT.glob("parse_engine/**/*.py"), *ROOT.glob("parse_integrations/**/*.py")))
PUBLIC = [(name, getattr(parse_engine, name)) for name in parse_engine.__all__]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )


@pytest.mark.parametrize(
    "code",
    [
        "import parse_engine, parse_integrations; from parse_engine import ParseConfig, Generation",
        "import runpy; sys.argv[1:] = ['--help']; runpy.run_module('parse_engine')",
    ],
)
def test_torch_is_not_loaded_before_it_is_needed(code: str) -> None:
    done = run_python(
        f"import sys\ntry:\n    {code}\nexcept SystemExit as end:\n    assert not end.code\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    )
    assert done.returncode == 0, done.stderr


def test_help_names_the_commands() -> None:
    done = run_python("import sys; from parse_engine.cli import main; main(['--help'])")
    assert done.returncode == 0
    for command in ("run", "compare", "verify", "demo"):
        assert command in done.stdout


def test_all_names_what_can_be_imported() -> None:
    names: dict[str, Any] = {}
    exec("from parse_engine import *", names)
    assert set(parse_engine.__all__) <= set(names)
    assert parse_engine.__all__ == sorted(parse_engine.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Enigne"):
        _ = parse_engine.Enigne


def test_version_is_the_same_everywhere() -> None:
    assert parse_engine.__version__ == PYPROJECT["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {parse_engine.__version__}" in changelog


def test_typed_packages_are_marked() -> None:
    for package in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert (ROOT / package / "py.typed").exists()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 300


def arguments(thing: Any) -> list[str]:
    """Name the arguments that a function or a class of its own takes; inherited ones are told."""
    if inspect.isclass(thing) and "__init__" not in vars(thing):
        return []
    return [name for name in inspect.signature(thing).parameters if not name.startswith("_")]


@pytest.mark.parametrize(("name", "thing"), PUBLIC, ids=parse_engine.__all__)
def test_public_things_are_documented(name: str, thing: Any) -> None:
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return  # Event, a union of classes that are documented each
    doc = inspect.getdoc(thing) or ""
    assert len(doc.split("\n")[0]) > 20
    if len(arguments(thing)) > 2:  # one or two can be told in the sentence
        assert "Parameters\n----------" in doc
        for argument in arguments(thing):
            assert re.search(rf"^(\w+, )*{argument}(, \w+)* : ", doc, re.MULTILINE), argument
    if inspect.isfunction(thing):
        assert "Returns\n-------" in doc or "Yields\n------" in doc
    methods = [member for key, member in vars(thing).items() if key[0] != "_"]
    for method in methods if inspect.isclass(thing) else []:
        if callable(method) or isinstance(method, property | classmethod):
            assert inspect.getdoc(method)


def tracked_files() -> list[Path]:
    """Return the files that git has or would add."""
    done = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if done.returncode:
        pytest.skip("this is no git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if (ROOT / name).is_file()]


def test_no_machine_and_no_host_is_named() -> None:
    # One letter of each in brackets, so that this file does not name them either.
    hosts = r"hugging[f]ace\.co\b|\bh[f]\.co\b|\bpyp[i]\.org\b|python[h]osted"
    named = re.compile(hosts + r"|(?<![\w.])/(?:wor[k]|roo[t])\b|/tm[p]/w\b")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if named.search(line)
    ]
    assert not found


@pytest.mark.usefixtures("llama_index_globals")
def test_python_examples_of_the_readme_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def on_tiny_models(*, target: str, draft: str, config: ParseConfig | None = None) -> Engine:
        model = tiny_model()
        return Engine(model, scripted(model, "One line.\nAnother line.\n"), config)

    monkeypatch.setattr(Engine, "from_pretrained", on_tiny_models)
    names: dict[str, Any] = {}
    for number, code in enumerate(blocks("python")):
        exec(compile(code, f"README block {number}", "exec", dont_inherit=True), names)
    names["llm"].close()
    out = capsys.readouterr().out
    assert "'drafted_tokens': " in out
    assert "tokens accepted" in out
    assert len(names["stats"].calls) == 2


def readme_commands() -> Iterator[list[str]]:
    """Find the arguments of each ``-m parse_engine`` in the README's shell blocks."""
    for block in blocks("bash"):
        for command in re.split(r"&&|\n", block):
            words = shlex.split(command)
            if "parse_engine" in words:
                yield words[words.index("parse_engine") + 1 :]


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    found: set[str] = set()
    for action in parser._actions:
        found.update(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found |= options_of(command)
    return found


def test_commands_of_the_readme_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    calibrated()[1].save("calibration.json")  # as another command writes it
    commands = list(readme_commands())
    assert commands
    for command in commands:
        if command[:2] == ["bench", "run"]:
            args = run.build_parser().parse_args(command[2:])
            assert run.parse_methods(args.methods, args.threshold)
            continue
        if command[:2] == ["bench", "judge"]:
            judge.build_parser().parse_args(command[2:])
            continue
        if command[0] == "calibrate":
            cli_calibrate.build_parser().parse_args(command[1:])
            continue
        args = build_parser().parse_args(command)
        assert args.demo
        assert args.question.endswith("code only.")
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", README))
    others = {"--check", "--repeat"}  # of ruff, and of bench verify
    parsers = (build_parser(), *(one.build_parser() for one in (run, judge, cli_calibrate)))
    assert named - others <= set().union(*map(options_of, parsers))


def test_readme_lists_the_settings_with_their_defaults() -> None:
    rows = [line.split(" | ") for line in README.splitlines() if line.startswith("| `")]
    listed = {name: row[1] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    for setting in fields(ParseConfig):
        shown = repr(setting.default).replace("'", '"')
        assert listed[setting.name] == f"`{shown}`", setting.name


def test_readme_lists_the_errors() -> None:
    for name, thing in PUBLIC:
        if inspect.isclass(thing) and issubclass(thing, ParseError):
            assert f"`{name}" in README


def test_readme_lists_the_files() -> None:
    tree = next(block for block in blocks("text") if "engine.py" in block)
    for path in MODULES:
        package, *folders = path.relative_to(ROOT).parent.parts
        if path.name not in ("__init__.py", "__main__.py"):
            folder = f"{folders[0]}/" if folders else ""
            assert re.search(rf"^  {folder}({path.name})?  ", tree, re.MULTILINE), path.name
        assert f"{package}/" in tree


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_everything_installed_directly_has_a_constraint() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = set(re.findall(r"^([\w-]+)==", text, re.MULTILINE))
    project = PYPROJECT["project"]
    lists = (project["dependencies"], *project["optional-dependencies"].values())
    names = {re.split(r"[^\w-]", requirement)[0] for wanted in lists for requirement in wanted}
    assert names - {project["name"]} <= pinned
