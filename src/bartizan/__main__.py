"""`python -m bartizan`: the command line."""

import sys

from bartizan_start import main

if __name__ == "__main__":
    sys.exit(main())
