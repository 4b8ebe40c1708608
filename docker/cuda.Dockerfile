# taso_mirage for NVIDIA GPUs: docker build -f docker/cuda.Dockerfile -t taso-mirage-cuda .
# Run it with --gpus all; the host has the driver, the wheels have CUDA and cuDNN.
FROM python:3.12-slim
# A compiler: for the kernels of a CPU, and for Triton's launcher.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN python -m pip install --no-cache-dir "/src[cuda,triton]"
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN useradd --create-home user
USER user
ENV TASO_MIRAGE_CACHE=/home/user/cache
WORKDIR /models
ENTRYPOINT ["taso-mirage"]
CMD ["--help"]
