"""Notes on amplification by shuffling: void where updates were linked or named."""

from fedaudit.accounting import Shuffled
from fedaudit.audits.amplification import amplification, notes_on_promises

KIND = {"local_epsilon": 3.8, "largest": 6.0, "clients": 100_000}
HELPS = Shuffled(epsilon=5.15, gains=True, **KIND)
IDLE = Shuffled(epsilon=5.15, gains=False, **KIND)
NEVER = Shuffled(epsilon=None, gains=False, **KIND)


def test_amplification_is_void_if_linked():
    assert "void" in amplification("record", "linked")
    assert "whole input" in amplification("record", "")
    assert "neither linked nor named" in amplification("client", "")
    for found, word in (("linked", "void"), ("", "only while")):
        assert "would make it 5.15" in amplification("client", found, HELPS)
        assert word in amplification("client", found, HELPS)
        assert "gains nothing" in amplification("client", found, IDLE)
    assert "does not apply, since one report costs 3.8" in amplification("client", "", NEVER)
    assert "void" in amplification("client", "linked", NEVER)


def test_where_senders_were_named_the_amplified_epsilon_is_not_claimed():
    said = amplification("client", "named", HELPS)
    assert "not claimed" in said
    assert "5.15" not in said


def test_notes_state_what_is_spent_and_what_shuffling_adds():
    one = {"epsilon": 2.0, "delta": 1e-5, "unit": "record", "relation": "add_or_remove"}
    spent, shuffling = notes_on_promises(
        {"dp_sgd": {"a": one, "b": {**one, "epsilon": 3.0}}}, [], [8, 8], "named"
    )
    assert spent == "dp_sgd spends epsilon 2 to 3 per record at delta 1e-05 over the whole run"
    assert "not claimed" in shuffling
