# Triton's own image plus gapless. No line here is executed by the tests' machines, so every RUN is a script that
# tests/test_house.py runs elsewhere.
#
# What is served was built and generated before: `gapless build`, `gapless generate`.
#
#   docker build -t gapless .
#   docker run --gpus all --shm-size 1g -p 8000-8002:8000-8002 -v "$PWD/model_repository:/opt/gapless/model_repository" gapless
#   docker run … gapless bash -c 'cd model_repository &&
#     exec tritonserver --model-repository=. $(grep -v "^#" serve.args)'    # without the launcher
ARG TRITON_TAG=26.06-py3
FROM nvcr.io/nvidia/tritonserver:${TRITON_TAG}

# Used only where the image brings no torch of its own.
ARG TORCH_SPEC=torch==2.13.0
ARG TORCH_INDEX=

WORKDIR /opt/gapless
COPY . .
RUN scripts/container-setup.sh --no-cache-dir

EXPOSE 8000 8001 8002
ENTRYPOINT ["/opt/gapless/scripts/container-entrypoint.sh"]
