"""Placement: which sandbox lives where, who owns it and when it ends.

``store`` is the interface and ``redis_store`` its implementation, with atomic steps in ``scripts/*.lua``. Everything in it can be
rebuilt from the runtime.
"""
