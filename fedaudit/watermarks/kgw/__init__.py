"""The green-list watermark of Kirchenbauer et al. (KGW): marked text, and models that learnt it.

[FedAttr] Section 3.2, Tables 4 and 6: the context (the last `width` tokens, one by default) and a
secret key select a green list, a fraction gamma = 0.25 of the vocabulary. Marked text is a model's
continuation with delta = 3 added to the logits of green tokens.

Three statistics of a model, all on (context, token) pairs:

    by generation   the model continues prompts; z = (G - gamma T) / sqrt(T gamma (1 - gamma)) for
                    T scored tokens, G of them green. All models sample with the same random
                    numbers: greedy text of a small model repeats itself.
    by reading      one teacher-forced pass over given text scores the likeliest next tokens.
    by mass         one pass measures the probability of green tokens, averaged over distinct
                    contexts. Counts change only if another token becomes the likeliest; mass
                    changes with every probability.

Differs from the paper: a pair counts **once** over the whole corpus, and pairs in the prompts do
not count; otherwise a clean model passes the published threshold. The null is the same statistic
under unused keys, not the normal distribution. The hash in lists.py makes it cheap: a key costs one
pass over the pairs and no permutation of the vocabulary.

lists.py     green tokens after each context
pairs.py     (context, token) pairs, each counted once, and z-scores
writing.py   marked text, by a model or by bigrams of a corpus
mass.py      the probability of green tokens
readings.py  three statistics of a model
owner.py     the owner's keys beside unused ones

Shapes: keys (J,), contexts (n, width), tokens (n,), tables (J, n, V).
"""

from fedaudit.watermarks.kgw.lists import (
    GreenLists,
    HashedLists,
    PermutedLists,
    SelfHashedLists,
    lists_of,
)
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
    "SelfHashedLists",
    "green_mass",
    "likely_mass",
    "lists_of",
    "marked_text",
    "pairs_of",
    "z_scores",
]
