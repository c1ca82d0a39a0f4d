"""The bundle's first module (``agent/main.pyc``): finds the agent beside itself and starts it.

Owns the import path and what of the image must not reach the interpreter's libraries. It is compiled into the bundle and not imported
from anywhere. Everything else is ``session_agent.__main__``'s.
"""

import os
import sys

sys.path.insert(0, f"{sys.prefix}/agent")
# libcrypto would read the configuration of the image, which may load libraries of the image; commands get the real environment back
# (session_agent.container)
os.environ["OPENSSL_CONF"] = "/dev/null"

from session_agent.__main__ import run

sys.exit(run(sys.argv[1:]))
