# One container, not root, for every verb; the folder of the data and runs is mounted at /data:
#   docker build -t radweave .                                  (--build-arg EXTRAS=serve,plots for extras)
#   docker run --rm -v "$PWD:/data" radweave generate run chest.dcm
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
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
