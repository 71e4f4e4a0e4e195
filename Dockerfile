# The project with its environment, for a CPU or, with --build-arg TORCH_BACKEND=auto on a machine with a GPU, for that.
#
#     docker build -t nanogka .
#     docker run --rm -it -v nanogka:/data nanogka                       # bash speedrun.sh; outputs stay in the volume
#     docker run --rm -it -v nanogka:/data nanogka python -m scripts.chat_cli
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
CMD ["bash", "speedrun.sh"]
