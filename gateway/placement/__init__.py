"""Placement: which sandbox lives where, whose it is and when it ends.

``records`` holds what is known, ``store`` the interface, ``redis_store`` the one module that speaks to Redis, ``*.lua`` its atomic
steps. Everything in it can be rebuilt from the runtime.
"""
