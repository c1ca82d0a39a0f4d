"""The differential suite: a command in a Holdfast sandbox against the same command in a reference container.

The reference is made on the spot with runc and docker's default OCI specification, of the same image, so that a case asks one
question: does a sandbox behave as `docker run IMAGE` does? A case is data (`cases/`); `image.py` builds the image from Debian
packages and keeps it below build/docker-suite; `intended.py` lists the differences that are meant, each with its reason.
`make test-docker` runs everything; `python -m tests.docker --case NAME` prints both sides of one case.
"""
