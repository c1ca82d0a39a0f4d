"""The differential suite: a command in a Holdfast sandbox against the same command in a reference container.

The suite creates the reference from the same image, with runc and docker's default OCI specification, so that a case answers one
question: does a sandbox behave as `docker run IMAGE` does? A case is data (`cases/`); `image.py` builds the image from Debian
packages and keeps it below build/docker-suite; `intended.py` lists the intended differences, each with its reason.
`make test-docker` runs everything; `python -m tests.docker --case NAME` prints both sides of one case.
"""
