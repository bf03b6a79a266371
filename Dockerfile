# One container, not root, for every verb; the folder of the data and runs is mounted at /data:
#   docker build -t radweave .                                  (--build-arg EXTRAS=serve,plots for extras)
#   docker run --rm -v "$PWD:/data" radweave generate run chest.dcm
# Its own root need not be written: --read-only --tmpfs /tmp --tmpfs /home/radweave. As a workstation, with a health check:
#   docker build --target workstation --build-arg EXTRAS=serve,hospital,plots -t radweave-workstation .
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim AS verbs
ARG EXTRAS=plots
# What pip shall do besides, such as an index of torch without CUDA.
ARG PIP_OPTIONS=
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt $PIP_OPTIONS "$(echo /wheels/*.whl)[$EXTRAS]" \
    && rm -r /wheels \
    && useradd --uid 1000 --create-home radweave
USER 1000
WORKDIR /data
ENTRYPOINT ["radweave"]
CMD ["doctor"]

FROM verbs AS workstation
EXPOSE 8765
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s --retries=4 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8765/healthz', timeout=4)"]
CMD ["serve", "/data/run", "--host", "0.0.0.0"]

# What is built where no target is named.
FROM verbs
