"""From a GGUF file to a folder that transformers loads like any other model.

Reading GGUF takes memory for every weight twice and shows progress bars that cannot be switched
off, so it happens in a process of its own, which also gives the memory back.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from parse_engine.demo.models import DemoModel
from parse_engine.errors import DemoDownloadError

MARKER = "parse_demo.json"
CONVERSION = 1  # raise it when write_folder changes, so that older folders are made anew

# Both end an answer in the families of the demo; a GGUF file names the first only.
END_TOKENS = ("<|im_end|>", "<|endoftext|>")


def is_whole_folder(folder: Path, model: DemoModel) -> bool:
    """Whether the folder holds a finished conversion of this very model.

    Parameters
    ----------
    folder : Path
        The converted model.
    model : DemoModel
        The model that it should be.

    Returns
    -------
    bool
        False also where a file was removed or cut short since.
    """
    try:
        marker = json.loads((folder / MARKER).read_text("utf-8"))
    except (FileNotFoundError, ValueError):  # ValueError: not the JSON that convert() writes
        return False
    if marker["sha256"] != model.sha256 or marker["conversion"] != CONVERSION:
        return False
    files = {name: folder / name for name in marker["files"]}
    return all(
        path.is_file() and path.stat().st_size == marker["files"][name]
        for name, path in files.items()
    )


def convert(gguf: Path, folder: Path, model: DemoModel, workspace: Path) -> None:
    """Convert a GGUF file to bf16 safetensors with config, generation config and tokenizer.

    Parameters
    ----------
    gguf : Path
        The file.
    folder : Path
        Where the result goes; what lies there is replaced. It appears whole or not at all.
    model : DemoModel
        The model.
    workspace : Path
        A folder on the same file system for the unfinished result.

    Raises
    ------
    DemoDownloadError
        If the conversion failed; the message has its last words.
    """
    workspace.mkdir(parents=True, exist_ok=True)
    for left_over in workspace.glob("converting-*"):
        shutil.rmtree(left_over, ignore_errors=True)  # may still be written to; goes later
    with tempfile.TemporaryDirectory(prefix="converting-", dir=workspace) as unfinished:
        result = Path(unfinished) / folder.name
        run_apart(gguf, result, model)
        sizes = {path.name: path.stat().st_size for path in sorted(result.iterdir())}
        marker = {"sha256": model.sha256, "conversion": CONVERSION, "files": sizes}
        (result / MARKER).write_text(json.dumps(marker, indent=1), "utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(result, folder)


def run_apart(gguf: Path, folder: Path, model: DemoModel) -> None:
    """Run ``write_folder`` in another process."""
    call = f"write_folder({str(gguf)!r}, {str(folder)!r}, split_digits={model.split_digits})"
    done = subprocess.run(
        [sys.executable, "-c", f"from parse_engine.demo.convert import write_folder; {call}"],
        # It must find the same packages as this process, and look for nothing on the network.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise DemoDownloadError(
            f"Converting {gguf.name} failed (exit status {done.returncode}): "
            f"{' '.join(lines[-5:]) or 'it said nothing.'}",
            f"It needs about {2 * model.folder_bytes / 1e9:.0f} GB of memory and the packages "
            "torch, transformers, accelerate and gguf. The fetched file is kept: run this again.",
        )


def write_folder(gguf: str, folder: str, *, split_digits: bool) -> None:
    """Read a GGUF file and save it as a plain bf16 model.

    Parameters
    ----------
    gguf, folder : str
        Where it is and where the result goes.
    split_digits : bool
        Give the tokenizer the rule that reads numbers digit by digit. GGUF files name the rule and
        transformers does not know this name, so that "  1" would be read in other tokens than the
        model was trained with.
    """
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    place, name = str(Path(gguf).parent), Path(gguf).name
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name)
    if split_digits:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    tokenizer.save_pretrained(folder)
    # dequantize=True gives ordinary weights and a config without quantization_config.
    model = AutoModelForCausalLM.from_pretrained(
        place,
        gguf_file=name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    # No sampling settings: unless the caller asks for sampling, the demo answers greedily.
    model.generation_config = GenerationConfig.from_dict(
        {
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.convert_tokens_to_ids(list(END_TOKENS)),
            "pad_token_id": tokenizer.pad_token_id,
        }
    )
    model.save_pretrained(folder)
