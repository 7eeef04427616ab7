"""The green-list watermark of Kirchenbauer et al. (KGW): marked text, and models that learnt it.

[FedAttr] Section 3.2, Tables 4 and 6: the context (the last `width` tokens, one by default) and a
secret key choose a green list of a fraction gamma = 0.25 of the vocabulary; a marked text is a
model's continuation with delta = 3 added to the logits of green tokens.

Three readings of a model, all of them on (context, token) pairs:

    by generation   the model continues prompts; z = (G - gamma T) / sqrt(T gamma (1 - gamma)) over
                    T scored tokens of which G are green. Sampled with the same random numbers for
                    all models: greedy text of a small model runs in circles.
    by reading      one teacher-forced pass over given text; its likeliest next tokens are scored.
    by mass         one pass; the probability that falls on green lists, averaged over the distinct
                    contexts. Counting sees a token only when it wins, this sees every nudge.

Differs from the paper: a pair counts **once** over the whole corpus, and pairs that stand in the
prompts do not count; without that, a clean model passes the published threshold. The null is
not the normal distribution but the same statistic under unused keys, which the hash in lists.py
makes cheap: a key costs one pass over the pairs, with no permutation of a vocabulary.

lists.py     which tokens are green after which context
pairs.py     (context, token) pairs, each counted once, and z-scores
writing.py   marked text, by a model or by a corpus
mass.py      the probability that falls on green tokens
readings.py  three readings of a model
owner.py     the owner's keys beside unused ones

Shapes: keys (J,), contexts (n, width), tokens (n,), tables (J, n, V).
"""

from fedaudit.watermarks.kgw.lists import GreenLists, HashedLists, PermutedLists
from fedaudit.watermarks.kgw.mass import green_mass, likely_mass
from fedaudit.watermarks.kgw.owner import GreenMarks
from fedaudit.watermarks.kgw.pairs import TokenPairs, pairs_of, z_scores
from fedaudit.watermarks.kgw.readings import GreenScore
from fedaudit.watermarks.kgw.writing import Bigrams, Marker, marked_text

__all__ = [
    "Bigrams",
    "GreenLists",
    "GreenMarks",
    "GreenScore",
    "HashedLists",
    "Marker",
    "TokenPairs",
    "PermutedLists",
    "green_mass",
    "likely_mass",
    "marked_text",
    "pairs_of",
    "z_scores",
]
