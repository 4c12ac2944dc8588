# One image for the API, the worker and the migrations, on x86-64 and aarch64. See docs/how-to/deploy.md.
# Pinned: docker build --build-arg PYTHON_IMAGE=python:3.11.13-slim-bookworm@sha256:...
ARG PYTHON_IMAGE=python:3.11.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /build
COPY requirements.lock pyproject.toml README.md LICENSE NOTICE ./
COPY .ci/runtime_lock.py .ci/
# Only what the lock names, checked by hash; no development tools.
RUN python .ci/runtime_lock.py > runtime.lock \
 && python .ci/runtime_lock.py hatchling > tools.lock \
 && python -m venv /opt/autodeploy \
 && /opt/autodeploy/bin/pip install --no-cache-dir --require-hashes --only-binary=:all: -r runtime.lock \
 && python -m venv tools \
 && tools/bin/pip install --no-cache-dir --require-hashes --only-binary=:all: -r tools.lock
COPY cost_models cost_models
COPY hardware_profiles hardware_profiles
COPY migrations migrations
COPY autodeploy autodeploy
COPY api api
RUN tools/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir wheels . \
 && /opt/autodeploy/bin/pip install --no-cache-dir --no-deps --no-index wheels/*.whl

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/autodeploy /opt/autodeploy
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/autodeploy autodeploy
USER 10001
WORKDIR /var/lib/autodeploy
VOLUME /var/lib/autodeploy
ENV PATH=/opt/autodeploy/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    AUTODEPLOY_DATABASE_URL=sqlite:////var/lib/autodeploy/autodeploy.db
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["autodeploy"]
CMD ["serve"]
