"""Trace (what crossed the wire), truth (what did not), and view (what one party sees)."""

from fedaudit.trace.examination import examine
from fedaudit.trace.health import Health, Problem
from fedaudit.trace.memory import MemoryRecorder, MemoryTruth
from fedaudit.trace.recorder import Recorder
from fedaudit.trace.schema import (
    AGGREGATOR,
    ANONYMOUS,
    NETWORK,
    PUBLIC,
    SERVER,
    SHUFFLER,
    WIRETAP,
    Manifest,
    Message,
)
from fedaudit.trace.truth import Truth, TruthRecorder
from fedaudit.trace.view import Trace, Updates, View

__all__ = [
    "AGGREGATOR",
    "ANONYMOUS",
    "NETWORK",
    "PUBLIC",
    "SERVER",
    "SHUFFLER",
    "WIRETAP",
    "Health",
    "Manifest",
    "MemoryRecorder",
    "MemoryTruth",
    "Message",
    "Problem",
    "Recorder",
    "Trace",
    "Truth",
    "TruthRecorder",
    "Updates",
    "View",
    "examine",
]
