"""The least that Django needs to serve one view; everything else is its default."""

import os

DEBUG = False
SECRET_KEY = "not used: nothing here is signed"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "bench.forwarder.urls"
MIDDLEWARE: list[str] = []
NODE_URL = os.environ["BENCH_NODE_URL"]
