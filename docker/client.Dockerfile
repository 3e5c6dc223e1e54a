# syntax=docker/dockerfile:1
# A client, without a compiler. In a checkout:
#   docker build -f docker/client.Dockerfile -t psyche-client .
#   docker run --network host -v ./my-run:/my-run:ro -v psyche-client:/data \
#     -e RUN_ID=my-run -e SERVER_ADDR=192.0.2.7:19400 psyche-client
# For an NVIDIA GPU add --gpus all. It has no HEALTHCHECK: a client that cannot go on ends, and its exit code says so.
FROM python:3.11-slim

ENV UV_SYSTEM_PYTHON=1 UV_CACHE_DIR=/var/cache/uv UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
RUN --mount=type=bind,source=requirements,target=/requirements \
    --mount=type=cache,target=/var/cache/uv \
    pip install --no-cache-dir --root-user-action=ignore uv==0.13.9 && \
    uv pip install --no-deps -r /requirements/train.lock
RUN --mount=type=bind,target=/source \
    --mount=type=cache,target=/var/cache/uv \
    uv pip install --no-deps /source
RUN useradd --create-home --uid 1000 psyche && install -d -o psyche -g psyche /data /my-run

USER psyche
WORKDIR /data
# Key, snapshots and models. Mount the run's folder, with the first weights, at /my-run; a client without it gets the
# weights from others.
VOLUME /data
ENV DATA_DIR=/data LOCAL_ROOT=/my-run BIND_P2P_PORT=4001
EXPOSE 4001
ENTRYPOINT ["psyche"]
CMD ["client", "train"]
