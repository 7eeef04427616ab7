"""[ActiveMembership]: figures 5 to 10, 13, 15, 16, tables 3 to 6, at a size that two cores finish.

Read `setting` (data and scales), `experiments` (what is run), `page` (published and measured side
by side), `run` (the command). `embedding` makes CIFAR-10 features with a network from a wheel,
`text` takes the embedding layer of another.
"""
