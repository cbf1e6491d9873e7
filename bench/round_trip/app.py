"""The task of the Celery contestant: hand a body to the node, hand the node's answer back."""

import os
from functools import cache

import urllib3
from celery import Celery

app = Celery("bench", broker=os.environ["BENCH_REDIS_URL"], backend=os.environ["BENCH_REDIS_URL"])
app.conf.update(
    task_default_queue="bench",
    result_expires=60,
    worker_hijack_root_logger=False,
    worker_enable_remote_control=False,
    worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
)


@cache
def pool() -> urllib3.PoolManager:
    return urllib3.PoolManager(maxsize=64)


@app.task
def ask_node(body: str) -> str:
    url, headers = os.environ["BENCH_NODE_URL"], {"Content-Type": "application/json"}
    return pool().request("POST", url, body=body.encode(), headers=headers).data.decode()
