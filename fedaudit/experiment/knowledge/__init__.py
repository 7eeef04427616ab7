"""What an adversary brings to an audit, and the answers that stay behind in the truth.

records.py      whose records are whose
candidates.py   records to ask about, matched one to one
noise.py        the noise in force
desk.py         where audits ask for all this
"""

from fedaudit.experiment.knowledge.candidates import candidates
from fedaudit.experiment.knowledge.desk import Desk, logits_of
from fedaudit.experiment.knowledge.noise import noise_of
from fedaudit.experiment.knowledge.records import Records, fits, of_config, of_files, of_run

__all__ = [
    "Desk",
    "Records",
    "candidates",
    "fits",
    "logits_of",
    "noise_of",
    "of_config",
    "of_files",
    "of_run",
]
