"""Can a record be rebuilt from what was sent?

Question: somebody reads a client's update, a shuffled row or only what the model moved by. Which
training records can they write down again?
Vantage: whoever sees updates or models. Named updates are searched for their sender's records,
anonymous rows and movements of the model for everybody's.
Paper: [Geiping] "Inverting Gradients" (2020): gradient matching by cosine and total variation with
signed Adam, Eq. (4), and Proposition 3.1: a linear layer with bias gives its input away.
[Balle] "Reconstructing Training Data with Informed Adversaries" (2022) and [Hayes] "Bounding
Training Data Reconstruction in DP-SGD" (2023): the ceiling from differential privacy.
Differs: labels are counted from the last layer's bias for several records at once; all rows and
restarts are one batch; several local steps are unrolled as full batches, since the order of batches
is unknown. A guess counts for one record only, the nearest of all that are asked about, and as many
records that nobody trained on compete: what they collect is the baseline. The published tables
report PSNR against the true record alone.
Shapes: K rows (K, d) per round; guesses (G, D) of D input numbers; asked records (n, D).

Files: `theory` (closed forms, the ceiling), `layers` (where the input meets a linear layer),
`analytic` (dW / db), `matching` (gradient matching), `scores`, `audit`.
"""

from fedaudit.audits.reconstruction.audit import Reconstruction
from fedaudit.audits.reconstruction.prior import Prior

__all__ = ["Prior", "Reconstruction"]
