"""Models by hub id: from a hub, from its cache, and without either. The hub is a local server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from parse_engine import Engine
from parse_engine.errors import ModelNotFoundError
from tests.demo_source import write_tiny_gguf
from tests.local_hub import COMMIT, local_hub
from tests.tiny_folders import changed_copy, save_tiny

# Loads each model, and prints an object a line: how it went, the pauses that were made before a
# further try, and the connections that were made or names looked up.
LOAD = """
import json
import sys
import time

pauses, connections = [], []
time.sleep = pauses.append
watched = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")
sys.addaudithook(lambda event, args: connections.append(event) if event in watched else None)

from parse_engine import Engine, ParseConfig, ParseError
from parse_engine.backends.loading import ModelSource, load

for model, settings in json.loads(sys.argv[1]):
    pauses.clear()
    connections.clear()
    loaded = None
    try:
        if model.endswith(".gguf"):
            loaded = load(ModelSource(model=model, **settings))
        else:
            loaded = Engine.from_pretrained(model, model, **settings).target
        outcome = str(loaded.network.dtype)
    except ParseError as error:
        outcome = f"{type(error).__name__}: {error.problem} HINT: {error.hint}"
    print(json.dumps([outcome, len(pauses), sorted(set(connections))]), flush=True)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("hub")
    whole = save_tiny(place / "whole")
    pickled = changed_copy(whole, place / "pickled", without="*.safetensors")
    torch.save({}, pickled / "pytorch_model.bin")
    (place / "gguf" / "q4").mkdir(parents=True)
    write_tiny_gguf(place / "gguf" / "q4" / "tiny.gguf")
    return {"org/whole": whole, "org/pickled": pickled, "org/gguf": place / "gguf"}


def load_apart(
    home: Path, hub: str, *loads: tuple[str | Path, dict[str, Any]]
) -> list[tuple[str, int, list[str]]]:
    """Load models in a process of its own; settings of the hub are read when it starts."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, json.dumps([(str(model), how) for model, how in loads])],
        env=inherited
        | {"PYTHONPATH": os.pathsep.join(sys.path), "HF_HOME": str(home), "HF_ENDPOINT": hub},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_from_a_hub_then_from_its_cache(tmp_path: Path, models: dict[str, Path]) -> None:
    offline = {"local_files_only": True}
    with local_hub(models) as (hub, log):
        found = load_apart(
            tmp_path,
            hub,
            ("org/whole", {}),
            ("org/whole", {"revision": "main"}),
            ("org/gguf/q4/tiny.gguf", {}),
            ("org/pickled", {}),
            ("org/none", {}),
            ("org/whole", {"revision": "v9"}),
        )
        outcomes = [outcome for outcome, _, _ in found]
        assert outcomes[:3] == ["torch.float32", "torch.float32", "torch.bfloat16"]
        assert "ModelNotFoundError" in outcomes[3]
        assert "Pickled weights are not read" in outcomes[3]
        for outcome in outcomes[4:]:
            assert "ModelNotFoundError" in outcome
            assert "the hub says: 404" in outcome
            assert "hf auth login" in outcome
        assert [pauses for _, pauses, _ in found] == [0] * 6
        fetched = [line for line in log if line.startswith("GET") and "/resolve/" in line]
        assert len(fetched) == len(set(fetched))  # nothing twice
        assert f"GET /org/whole/resolve/{COMMIT}/model.safetensors" in fetched
        assert f"GET /org/gguf/resolve/{COMMIT}/q4/tiny.gguf" in fetched
        assert not [line for line in log if line.startswith("POST") or ".bin" in line]

        log.clear()  # the hub is there, and is not asked
        local = load_apart(
            tmp_path,
            hub,
            ("org/whole", offline),
            ("org/gguf/q4/tiny.gguf", offline),
            (models["org/whole"], {}),
            (models["org/gguf"] / "q4" / "tiny.gguf", {}),
            ("org/none", offline),
            ("org/whole", {**offline, "revision": "v9"}),
            ("org/gguf/q8/tiny.gguf", offline),
        )
        outcomes = [outcome for outcome, _, _ in local]
        expected = ["torch.float32", "torch.bfloat16", "torch.float32", "torch.bfloat16"]
        assert outcomes[:4] == expected
        for outcome in outcomes[4:]:
            assert "is not on this machine, and the hub is not to be asked" in outcome
        assert [connections for _, _, connections in local] == [[]] * 7
        assert log == []

    # Nobody listens there any more.
    gone = load_apart(tmp_path, hub, ("org/whole", {}), ("org/none", {}), ("org/gguf/x.gguf", {}))
    assert gone[0][0] == "torch.float32"
    for outcome, _, _ in gone[1:]:
        assert "ModelNotFoundError" in outcome
        assert "the model hub could not be reached" in outcome
        for way in ("local folder", ".gguf", "Engine.demo()"):
            assert way in outcome
    assert [pauses for _, pauses, _ in gone] == [0] * 3  # one try is enough


@pytest.mark.parametrize("model", ["a b", "org/wh*le", "-", "a" * 200])
def test_what_can_be_no_hub_id_is_refused_without_asking(model: str) -> None:
    with pytest.raises(ModelNotFoundError, match="is no file or folder, and no hub id") as caught:
        Engine.from_pretrained(model)
    assert "Engine.demo()" in caught.value.hint
