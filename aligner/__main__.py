"""`python -m aligner`: the same as the `aligner` command."""

import sys

from aligner.cli import main

if __name__ == "__main__":
    sys.exit(main())
