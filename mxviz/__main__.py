"""`python -m mxviz` is the command `mxviz`."""

import sys

from mxviz.cli import main

if __name__ == "__main__":
    sys.exit(main())
