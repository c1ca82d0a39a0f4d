"""Placement: the endpoint, owner and expiry of every sandbox.

``store`` is what others use, ``errors`` what it raises; the atomic steps are ``scripts/*.lua``. Everything in it can be rebuilt from the
runtime.
"""
