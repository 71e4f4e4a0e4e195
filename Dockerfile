# The project with its environment, for a CPU or for NVIDIA GPUs.
#
#     docker build -t nanogka .                                        # for a CPU
#     docker build -t nanogka --build-arg TORCH_BACKEND=cu130 .        # for GPUs; cu126 for older drivers
#     docker run --rm -it -v nanogka:/data nanogka                     # runs speedrun.sh; the volume keeps its outputs
#     docker run --rm -it -v nanogka:/data nanogka python -m scripts.chat_cli
#     docker run --rm -it -v nanogka:/data -p 8000:8000 -e NANOGKA_API_KEY nanogka \
#         python -m scripts.serve --host 0.0.0.0
#
# With GPUs, add `--gpus all --ipc=host` to each `docker run`.
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends g++ git && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home nanogka && mkdir /data && chown nanogka /data
WORKDIR /home/nanogka/nanogka
COPY --chown=nanogka . .
RUN chown nanogka .
USER nanogka
ARG TORCH_BACKEND=cpu
RUN TORCH_BACKEND=$TORCH_BACKEND bash scripts/setup.sh
# Downloads and compiled kernels are kept on the volume too, so that the next container does not repeat them.
ENV NANOGKA_BASE_DIR=/data HF_HOME=/data/huggingface TORCHINDUCTOR_CACHE_DIR=/data/inductor \
    TRITON_CACHE_DIR=/data/triton PATH=/home/nanogka/nanogka/.venv/bin:$PATH
EXPOSE 8000
CMD ["bash", "speedrun.sh"]
