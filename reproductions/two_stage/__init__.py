"""[TwoStage]: figures 1 to 5, what its faults do to figure 4, and where stage I binds.

Read `setting` (one federation, recorded and attacked), `geometry` (figures 1 to 3, which need no
federation), `faults` (the published loop, fault by fault), `experiments` (what is run), `page`
(published and measured side by side), `run` (the command).
"""
