"""Security games with the clients of a run: the challenger's side of active membership.

Every game is played anew: a client (or a whole federation, where uploads arrive mixed) receives a
planted model through the engine, takes one full-batch step on records that were dealt for this
game, and its upload passes the run's own protections. Data and coins are drawn here and stay here:
the audit sees what the server sees, the truth is told the coins.

mechanisms.py   a local mechanism as the server knows it
protections.py  what games are played behind
rows.py         records of all clients as rows of numbers
embedding.py    the embedding that attention is to see
games.py        dealing, and playing through the engine
from_run.py     from a run to a table
"""

from fedaudit.knowledge.probing.from_run import table
from fedaudit.knowledge.probing.games import Games
from fedaudit.knowledge.probing.mechanisms import channel_of

__all__ = ["Games", "channel_of", "table"]
