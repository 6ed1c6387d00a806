"""`python -m bartizan`: the command line."""

import sys

from bartizan.cli import main

if __name__ == "__main__":
    sys.exit(main())
