# taso_mirage for CPUs: docker build -f docker/cpu.Dockerfile -t taso-mirage .
FROM python:3.12-slim
# A compiler for the kernels of a CPU: on the machine that runs them.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /src
# The smaller build of ONNX Runtime (docs/install.md).
ARG TASO_MIRAGE_BUILD=cpu
RUN python -m pip install --no-cache-dir /src
RUN useradd --create-home user
USER user
ENV TASO_MIRAGE_CACHE=/home/user/cache
WORKDIR /models
ENTRYPOINT ["taso-mirage"]
CMD ["--help"]
