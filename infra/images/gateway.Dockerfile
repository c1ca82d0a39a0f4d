# Gateway and controller: one image, the argument selects one. Build from the top of the repository:
#   docker build -f infra/images/gateway.Dockerfile -t holdfast-gateway .
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
WORKDIR /src
RUN python -m venv /opt/holdfast && /opt/holdfast/bin/pip install --no-cache-dir --upgrade "pip>=25.1"
# The dependencies change less often than the code: a layer of their own.
COPY pyproject.toml README.md LICENSE Procfile ./
COPY schemas schemas
COPY sdk_py sdk_py
RUN /opt/holdfast/bin/pip install --no-cache-dir '.[kubernetes]' \
 && /opt/holdfast/bin/pip uninstall --yes pip setuptools
COPY gateway /opt/holdfast/app/gateway
COPY schemas/openapi.yaml /opt/holdfast/app/schemas/openapi.yaml
RUN /opt/holdfast/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/holdfast/app /opt/holdfast/lib

FROM ${BASE}
COPY --from=build /opt/holdfast /opt/holdfast
# Nothing is written at run time: read-only roots are fine. A number, because the kubelet cannot check that a user name is not root.
USER 10001:10001
WORKDIR /opt/holdfast/app
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOLDFAST_HOST=0.0.0.0 HOLDFAST_DATA=/tmp
EXPOSE 8765
ENTRYPOINT ["/opt/holdfast/bin/python", "-m"]
CMD ["gateway"]
