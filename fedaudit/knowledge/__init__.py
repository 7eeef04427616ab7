"""What an adversary brings to an audit: records, candidates, noise, shadows, marks, games.

records.py      the records of every client
candidates.py   members and non-members, matched one to one
noise.py        the declared noise
shadows.py      federations that the adversary trains itself
probing/        security games with the clients of a run
builder.py      builds all of this for an audit
"""

from fedaudit.knowledge.builder import KnowledgeBuilder
from fedaudit.knowledge.candidates import candidates
from fedaudit.knowledge.noise import noise_of
from fedaudit.knowledge.records import Records, check_model_fits, of_config, of_files, of_run

__all__ = [
    "KnowledgeBuilder",
    "Records",
    "candidates",
    "check_model_fits",
    "noise_of",
    "of_config",
    "of_files",
    "of_run",
]
