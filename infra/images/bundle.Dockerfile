# The session agent with everything it needs, and nothing else: mounted into sandboxes, or copied into them by an init container.
#   docker build -f infra/images/bundle.Dockerfile -t holdfast-bundle .
# The loader and the libraries are those of BASE: a Debian with a glibc.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
WORKDIR /src
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends binutils && rm -rf /var/lib/apt/lists/* \
 && python -m venv /venv && /venv/bin/pip install --no-cache-dir --upgrade "pip>=25.1"
COPY pyproject.toml README.md LICENSE Procfile ./
COPY schemas schemas
COPY sdk_py sdk_py
RUN /venv/bin/pip install --no-cache-dir .
COPY session_agent session_agent
RUN /venv/bin/python -m session_agent.bundle --output /image/.holdfast

FROM scratch
COPY --from=build /image/.holdfast /.holdfast
# What an init container runs is named by the pod; alone, the image has nothing to do.
USER 65532:65532
