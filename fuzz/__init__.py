"""Feed fedaudit files that are torn, altered or hostile: every one ends in an error of its own.

    python -m fuzz                     10,000 mutations; goes on where it was stopped
    python -m fuzz --seed 7 --case 42  one of them again, with its traceback
    python -m fuzz.kills 100           kill a run at random moments; it ends with the same trace

`mutate` changes files, `corpus` makes whole ones, `targets` reads them as a user would, `campaign`
counts what happens.
"""
