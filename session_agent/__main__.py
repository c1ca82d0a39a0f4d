"""``python -m session_agent``: the agent as a container's command."""

import sys

from .server import main

if __name__ == "__main__":
    sys.exit(main())
