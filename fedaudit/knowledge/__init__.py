"""What an adversary brings to an audit: records, candidates, noise, shadows, marks, games.

records.py      the records of every client
candidates.py   members and non-members, matched one to one
noise.py        the declared noise
shadows.py      federations that the adversary trains itself
prior.py        what the adversary expects of records before it sees any
dishonest.py    a server that plants weights, replayed with the clients of a run
rehearsal.py    a federation played again with canaries
owner_marks.py  documents and keys that an owner brings
record_sets.py  sets of ordinary records of a client, and of held-out ones
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
