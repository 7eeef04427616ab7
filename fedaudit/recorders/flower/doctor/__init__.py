"""Looks at a Flower app without running it: what is protected, who sees what, what can be audited.

The app's pyproject.toml says where server and client are; their code is parsed, never imported.
What cannot be read off the code (a strategy chosen at run time, a value that is computed) is said
to be unknown, never guessed. Flower itself need not be installed.

    source.py       one file of the app: what its names mean, and what it calls
    app.py          all files together: strategies, mods, rounds
    protections.py  what protects, whom it trusts, what it promises
    problems.py     what does not do what it seems to
    observers.py    who would see what, and what a recording could be asked
    diagnosis.py    all of it in words
"""

from __future__ import annotations

from fedaudit.recorders.flower.doctor.diagnosis import Diagnosis, Protection
from fedaudit.recorders.flower.doctor.examine import examine

__all__ = ["Diagnosis", "Protection", "examine"]
