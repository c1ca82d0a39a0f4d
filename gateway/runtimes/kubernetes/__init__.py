"""The Kubernetes runtime: a sandbox is a pod of any image, with the agent's bundle mounted into it.

Owns nothing itself; importing it costs nothing. ``runtime`` holds the implementation, ``settings`` what a deployment may choose.
"""
