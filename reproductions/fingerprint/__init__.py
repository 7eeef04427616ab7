"""[Fingerprint]: tables 2 to 6 and 9 to 11, figures 2 and 3, footnote 4, and what they leave open.

Read `setting` (data, model, one federation), `linking` (rows, labels, scores), `experiments` (what
is run), `page` (published and measured side by side), `run` (the command).
"""
