# Coterie with its development tools. Inside, `make demo` trains a team and `make test` runs the tests.
#
#   docker build -t coterie .                                  CUDA: run it with --gpus all
#   docker build -t coterie --build-arg INDEX=URL .            URL: an index with CPU builds of torch, for a small image
#   docker run --rm -it --security-opt seccomp=unconfined coterie make demo
#
# Programs that a model writes run under bubblewrap, which needs user namespaces: hence the security option. gcc builds
# pycosat, which comes without wheels, and Triton compiles its launchers with it on a GPU. Tests in a browser are skipped.
FROM python:3.11-slim

RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap gcc git libc6-dev make \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /coterie
COPY . .
ARG INDEX=""
ENV PIP_EXTRA_INDEX_URL=$INDEX PIP_NO_CACHE_DIR=1
RUN make .venv/for-tests
ENV PATH=/coterie/.venv/bin:$PATH
VOLUME ["/coterie/runs", "/root/.cache/coterie"]
CMD ["coterie", "--help"]
