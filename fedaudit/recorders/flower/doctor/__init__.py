"""Examine a Flower app without running it: its protections, observers and possible audits.

The app's pyproject.toml names server and client; their code is parsed, never imported. Facts that
the code does not show (a strategy chosen at run time, a computed value) are reported as unknown,
never guessed. Flower itself need not be installed.

    source.py       one file of the app: its names and calls
    app.py          all files together: strategies, mods, rounds
    protections.py  protections, whom they trust, their guarantees
    problems.py     protections that do not work as they seem to
    observers.py    what each observer would see, and which audits a recording allows
    diagnosis.py    the result, as data and in words
"""

from __future__ import annotations

from fedaudit.recorders.flower.doctor.diagnosis import Diagnosis, Protection
from fedaudit.recorders.flower.doctor.examine import examine

__all__ = ["Diagnosis", "Protection", "examine"]
