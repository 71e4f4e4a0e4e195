# The project with its environment, for a CPU or for NVIDIA GPUs.
#
#     docker build -t nanogka .                                        # for a CPU
#     docker build -t nanogka --build-arg TORCH_BACKEND=cu130 .        # for GPUs; cu126 for older drivers
#     docker run --rm -it -v nanogka:/data nanogka                     # runs speedrun.sh; the volume keeps its outputs
#     docker run --rm -it -v nanogka:/data nanogka python -m scripts.chat_cli
#     docker run --rm -it -v nanogka:/data -p 8000:8000 nanogka python -m scripts.serve --host 0.0.0.0 --api-key SECRET
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
ENV NANOGKA_BASE_DIR=/data PATH=/home/nanogka/nanogka/.venv/bin:$PATH
EXPOSE 8000
CMD ["bash", "speedrun.sh"]
