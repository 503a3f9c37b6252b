# In place of prom/prometheus, whose image cannot be had everywhere: Debian's package, run as that image runs it.
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends prometheus wget && rm -rf /var/lib/apt/lists/*
RUN install -d -o nobody -g nogroup /prometheus
WORKDIR /prometheus
USER nobody
ENTRYPOINT ["prometheus"]
