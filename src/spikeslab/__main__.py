"""``python -m spikeslab``, for environments whose scripts are not on the path."""

import sys

from spikeslab.cli import main

if __name__ == "__main__":
    sys.exit(main())
