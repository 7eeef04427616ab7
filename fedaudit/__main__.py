"""`python -m fedaudit` is the command line."""

import os
import sys

# `python -m` puts the working folder first, so that a file `json.py` in it would be imported
if sys.path[0] in ("", os.getcwd()) and not sys.flags.safe_path:
    sys.path.append(sys.path.pop(0))

from fedaudit.cli import main

main()
