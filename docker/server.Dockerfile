# syntax=docker/dockerfile:1
# The coordinator server and the owner's commands, without torch, libp2p or a compiler. In a checkout:
#   docker build -f docker/server.Dockerfile -t psyche-server .
#   docker run -v ./my-run:/my-run:ro -v psyche-server:/data -p 19400:19400 -p 19401:19401 psyche-server
FROM python:3.11-slim

ENV UV_SYSTEM_PYTHON=1 UV_CACHE_DIR=/var/cache/uv UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
RUN --mount=type=bind,source=requirements,target=/requirements \
    --mount=type=cache,target=/var/cache/uv \
    pip install --no-cache-dir --root-user-action=ignore uv==0.13.9 && \
    uv pip install --no-deps -r /requirements/server.lock
RUN --mount=type=bind,target=/source \
    --mount=type=cache,target=/var/cache/uv \
    uv pip install --no-deps /source
RUN useradd --create-home --uid 1000 psyche && install -d -o psyche -g psyche /data

USER psyche
WORKDIR /data
# The journal and the server's key. Mount the run's folder (run.toml, data.toml, data) at /my-run.
VOLUME /data
ENV STATE_DIR=/data SERVER_ADDR=127.0.0.1:19400
EXPOSE 19400 19401
HEALTHCHECK --interval=30s --timeout=20s --start-period=30s CMD ["psyche", "run", "info"]
ENTRYPOINT ["psyche"]
CMD ["server", "run", "--state", "/my-run", "--server-port", "19400"]
