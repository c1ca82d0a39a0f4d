"""Placement: which sandbox lives where, who owns it and when it ends.

``store`` is what others use, ``errors`` what it raises; the atomic steps are ``scripts/*.lua``. Everything in it can be rebuilt from the
runtime.
"""
