"""Security games with the clients of a run: the challenger's side of active membership.

In every game, a client (or a whole federation, if uploads arrive mixed) receives a planted model
through the engine and takes one full-batch step on records drawn for this game. Its upload passes
the run's own protections. The audit sees what the server sees; only the truth gets the coins.

mechanisms.py   a local DP mechanism as the server knows it
protections.py  the protections in force during games
rows.py         records of all clients as rows of numbers
embedding.py    the embedding for the attention adversary
games.py        draw data and coins, play games through the engine
from_run.py     build the games of a run
"""

from fedaudit.knowledge.probing.from_run import build_games
from fedaudit.knowledge.probing.games import Games
from fedaudit.knowledge.probing.mechanisms import channel_of

__all__ = ["Games", "build_games", "channel_of"]
