"""PARSE: a small model drafts, a large one judges every prefix in one pass and writes the rest.

Parallel Prefix Verification for Speculative Generation, arXiv 2605.04263. Torch is loaded when
``Engine`` is first used, not when this package is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parse_engine.calibration import Calibration, read_calibration
from parse_engine.config import ParseConfig
from parse_engine.errors import (
    BoundWarning,
    CalibrationError,
    CallCancelledError,
    CallTimeoutError,
    ContextOverflowError,
    DemoDownloadError,
    FallbackWarning,
    InvalidRequestError,
    ModelNotFoundError,
    ParseError,
    UnsupportedModelError,
    VerificationError,
)
from parse_engine.stats import CallStats, StatsCollector, parse_stats
from parse_engine.types import (
    DraftForm,
    DraftProgress,
    Event,
    Generation,
    TextDelta,
    Usage,
    Verdicts,
    Verified,
)

if TYPE_CHECKING:
    from parse_engine.engine import Engine

__version__ = "0.1.0"

__all__ = [
    "BoundWarning",
    "Calibration",
    "CalibrationError",
    "CallCancelledError",
    "CallStats",
    "CallTimeoutError",
    "ContextOverflowError",
    "DemoDownloadError",
    "DraftForm",
    "DraftProgress",
    "Engine",
    "Event",
    "FallbackWarning",
    "Generation",
    "InvalidRequestError",
    "ModelNotFoundError",
    "ParseConfig",
    "ParseError",
    "StatsCollector",
    "TextDelta",
    "UnsupportedModelError",
    "Usage",
    "Verdicts",
    "VerificationError",
    "Verified",
    "parse_stats",
    "read_calibration",
]


def __getattr__(name: str) -> Any:
    """Load the engine, and with it torch, when it is first asked for."""
    if name == "Engine":
        from parse_engine.engine import Engine

        return Engine
    raise AttributeError(f"module 'parse_engine' has no attribute {name!r}")
