"""What an adversary brings to an audit, and the answers that stay behind in the truth.

records.py      whose records are whose
candidates.py   records to ask about, matched one to one
noise.py        the noise in force
builder.py      where audits ask for all this
"""

from fedaudit.knowledge.builder import Desk
from fedaudit.knowledge.candidates import candidates
from fedaudit.knowledge.noise import noise_of
from fedaudit.knowledge.records import Records, fits, of_config, of_files, of_run

__all__ = [
    "Desk",
    "Records",
    "candidates",
    "fits",
    "noise_of",
    "of_config",
    "of_files",
    "of_run",
]
