FROM python:3.13-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
RUN python -m venv /venv
# What changes seldom comes first, so that it stays in the cache.
COPY requirements/build.txt requirements/run.txt requirements/
RUN /venv/bin/pip install --require-hashes -r requirements/build.txt -r requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY webhooks webhooks
COPY workers workers
RUN /venv/bin/pip install --no-deps --no-build-isolation .

FROM python:3.13-slim
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
RUN useradd --system --uid 10001 --no-create-home inbox && install --directory --owner=inbox instance
COPY --from=build /venv /venv
COPY migrations migrations
COPY wsgi.py ./
USER inbox
EXPOSE 8000
CMD ["granian", "--interface", "wsgi", "--host", "0.0.0.0", "--port", "8000", "wsgi:app"]
