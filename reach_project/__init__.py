from reach_project.celery import app as celery_app

VERSION = "0.1.0"
__all__ = ["VERSION", "celery_app"]
