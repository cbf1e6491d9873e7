"""All settings, and the only reader of the environment.

Every `REACH_*` number is declared by `limit()`, which keeps unit, default and reason together:
`manage.py reach_configuration` writes `docs/configuration.md` from that list.
"""

import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.utils.translation import gettext_lazy as _

from dashboard.site import UNFOLD  # noqa: F401  how the admin looks and what its sidebar holds
from reach_project import assets, embedded, logs

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()


@dataclass(frozen=True, slots=True)
class Limit:
    """One documented setting: its name, default, unit and the reason for the default."""

    name: str
    default: object
    unit: str
    reason: str


CONFIGURATION: list[Limit] = []


def limit(name: str, default: float | int | bool | str, unit: str, reason: str):
    """Read one setting from the environment in the type of its default. Raises ImproperlyConfigured otherwise."""
    CONFIGURATION.append(Limit(name, default, unit, reason))
    if isinstance(default, bool):
        read = env.bool
    elif isinstance(default, int):
        read = env.int
    elif isinstance(default, float):
        read = env.float
    else:
        return env.str(name, default=default)
    try:
        value = read(name, default=default)
    except ValueError as exc:
        raise ImproperlyConfigured(f"{name}={env.str(name)!r} is not a number ({unit})") from exc
    if not isinstance(value, bool) and value < 0:
        raise ImproperlyConfigured(f"{name}={value} must not be negative ({unit})")
    return value


def choice(name: str, default: str, among: Sequence[str], reason: str) -> str:
    """Read one setting that takes one of a few words. Raises ImproperlyConfigured otherwise."""
    word = limit(name, default, "|".join(among), reason)
    if word not in among:
        raise ImproperlyConfigured(f"{name}={word!r} must be one of {', '.join(among)}")
    return word


# --- Where it runs ---------------------------------------------------------------------------------------------------

REACH_HOME = Path(limit("REACH_HOME", ".reach", "path", "state of one instance: credentials, secret key, database"))
REACH_HOME = REACH_HOME if REACH_HOME.is_absolute() else BASE_DIR / REACH_HOME


def listen_address() -> tuple[str, int]:
    """Host and port from REACH_HOST/REACH_PORT, else from the article's LISTEN_ADDR (":8080")."""
    host, _colon, port = env.str("LISTEN_ADDR", default="").rpartition(":")
    return env.str("REACH_HOST", default=host or "127.0.0.1"), env.int("REACH_PORT", default=int(port or 8080))


REACH_HOST, REACH_PORT = listen_address()
CONFIGURATION += [
    Limit("REACH_HOST", "127.0.0.1", "address", "loopback until you decide otherwise; LISTEN_ADDR=:8080 works too"),
    Limit("REACH_PORT", 8080, "port", "the article's port"),
    Limit("DATABASE_URL", "", "url", "PostgreSQL 15 or newer; empty = an embedded PostgreSQL under REACH_HOME"),
    Limit("REDIS_URL", "", "url", "broker when several processes share work; empty = in memory, one process"),
    Limit("SECRET_KEY", "", "text", "signs sessions, encrypts signing secrets; empty = generated on first start"),
    Limit("ALLOWED_HOSTS", "", "comma list", "names this instance answers to, besides loopback and REACH_HOST"),
    Limit("ROUTE_FILE", "", "path", "YAML or JSON; becomes revision 1, later edits become a change in review"),
]
REACH_ENVIRONMENT = limit(
    "REACH_ENVIRONMENT", "", "text", "shown on every page of the admin, so that nobody takes production for a test"
)
REACH_ROLE = limit("REACH_ROLE", "all", "all|dispatcher|console", "only `all` runs worker and beat beside the server")
if REACH_ROLE not in ("all", "dispatcher", "console"):
    raise ImproperlyConfigured(
        f"REACH_ROLE={REACH_ROLE!r} must be all (everything in one process), dispatcher (calls) or console (the admin)"
    )
DATABASE_URL = env.str("DATABASE_URL", default="")
REDIS_URL = env.str("REDIS_URL", default="")
ROUTE_FILE = env.str("ROUTE_FILE", default="")
REACH_DATABASE_POOL = limit(
    "REACH_DATABASE_POOL", 12, "connections", "for ordinary endpoints; dispatch has its own six, whatever these do"
)

# --- Secrets ---------------------------------------------------------------------------------------------------------


def stored_secret_key(path: Path) -> str:
    """The secret key of this home, made on first use, readable by its owner only."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(path, "x", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:  # Path.open has no opener
                file.write(secrets.token_urlsafe(50))
        except FileExistsError:
            pass  # another process of this home was first
        return path.read_text().strip()


GIVEN_SECRET_KEY = env.str("SECRET_KEY", default="")
SECRET_KEY = GIVEN_SECRET_KEY or stored_secret_key(REACH_HOME / "secret_key")

# --- Django ----------------------------------------------------------------------------------------------------------

DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]", REACH_HOST, *env.list("ALLOWED_HOSTS", default=[])]
INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",
    "unfold.contrib.filters",
    "dashboard.apps.ReachAdminConfig",  # django.contrib.admin with our site
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "django.contrib.humanize",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "axes",
    "registry",
    "receipts",
    "routing",
    "dashboard.apps.DashboardConfig",
    "reach_project",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "reach_project.security.ContentSecurityMiddleware",
    "servestatic.middleware.ServeStaticMiddleware",  # has its own compressed files
    "reach_project.compression.PageCompressionMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",
]
ROOT_URLCONF = "reach_project.urls"
ASGI_APPLICATION = "reach_project.asgi.application"
APPEND_SLASH = False
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES: dict[str, dict[str, Any]] = {
    "default": dict(env.db_url_config(DATABASE_URL) if DATABASE_URL else embedded.database_settings(REACH_HOME))
}
DATABASES["default"] |= {
    "ENGINE": "django.db.backends.postgresql",
    "CONN_HEALTH_CHECKS": True,  # a pooled session that died with its server is not handed out
    "OPTIONS": DATABASES["default"].get("OPTIONS", {})
    | {"pool": {"min_size": 0, "max_size": REACH_DATABASE_POOL, "timeout": 10}},
}
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_REDIRECT_URL = "/admin/"
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
REACH_LOGIN_FAILURES = limit("REACH_LOGIN_FAILURES", 10, "logins", "then that name is locked out at that address")
REACH_LOGIN_LOCKOUT_S = limit("REACH_LOGIN_LOCKOUT_S", 300, "s", "how long such a lockout lasts")
AXES_FAILURE_LIMIT = REACH_LOGIN_FAILURES
AXES_COOLOFF_TIME = timedelta(seconds=REACH_LOGIN_LOCKOUT_S)
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]  # nobody locks others out from elsewhere
AXES_RESET_ON_SUCCESS = True
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_LOCKOUT_CALLABLE = "dashboard.views.locked_out"
AXES_ENABLE_ADMIN = False
AXES_DISABLE_ACCESS_LOG = True  # failures are kept for as long as they count; successes are Django's last_login
AXES_VERBOSE = False
LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English")), ("zh-hans", _("Simplified Chinese"))]
LOCALE_PATHS = [BASE_DIR / "locale"]
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = f"/static/{assets.state_of(BASE_DIR / 'dashboard' / 'static')}/"
SERVESTATIC_USE_FINDERS = True  # served from where they lie: nothing to collect before a start
SERVESTATIC_MAX_AGE = 365 * 86_400  # other files have another address
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
SECURE_CONTENT_TYPE_NOSNIFF = True
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["registry.auth.KeyAuthentication", "registry.auth.SessionAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["registry.auth.HasScope"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": [],  # bodies are read by `registry.http.read_body`, chunked ones too
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "registry.negotiation.AlwaysJSON",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "reach_project.problems.exception_handler",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "POSTPROCESSING_HOOKS": ["reach_project.openapi.summarize"],
    "TITLE": "Agent-Reach",
    "DESCRIPTION": "The layer through which a company's AI agents reach each other.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": [],
    "SERVE_AUTHENTICATION": [],
    "SWAGGER_UI_DIST": "SIDECAR",  # files of our own: the page loads nothing from elsewhere
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "validatorUrl": None},
}

# --- Celery ----------------------------------------------------------------------------------------------------------

CELERY_BROKER_URL = REDIS_URL or "memory://localhost/"
CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, Any] = (
    {
        "socket_connect_timeout": 5,
        "socket_timeout": 5,  # a broker that hangs holds nobody for ever; a worker's longest wait for it is 1 s
        "socket_keepalive": True,
        "health_check_interval": 5,
        "visibility_timeout": 60,  # what a killed worker had taken is soon forgotten: beat says it all again
        "queue_order_strategy": "priority",  # in the order of `-Q reach,probes`: probes wait for sweeps
    }
    if REDIS_URL
    else {"polling_interval": 0.02}
)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # the broker may be away for as long as it likes
CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TASK_ACKS_LATE = True
CELERY_TIMEZONE = "UTC"
CELERY_TASK_DEFAULT_QUEUE = "reach"
CELERY_TASK_ROUTES = {"registry.probe_*": {"queue": "probes"}, "registry.knock": {"queue": "probes"}}
CELERY_WORKER_PREFETCH_MULTIPLIER = 1  # what one worker has no hand free for is another's
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False  # tasks may run twice, and do not need the broker
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False  # nobody asks, and its answers would gather in the broker
CELERY_BEAT_SCHEDULER = "reach_project.celery:ScheduleInMemory"
CELERY_BEAT_MAX_LOOP_INTERVAL = 1

# --- Logging ---------------------------------------------------------------------------------------------------------


def is_our_mistake(record: logging.LogRecord) -> bool:
    """Whether a request failed by a bug; a refusal is told to who asked."""
    failure = record.exc_info
    return bool(failure) and not (isinstance(failure, tuple) and isinstance(failure[1], PermissionDenied))


REACH_LOG_FORMAT = choice(
    "REACH_LOG_FORMAT", "line", logs.FORMATS, "one line a record: for people, or JSON for machines"
)
REACH_LOG_LEVEL = choice(
    "REACH_LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR"), "libraries tell WARNING only"
)
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {  # what is wrong with a request, or not ready yet, is told to who asked
        "mistakes of ours": {"()": "django.utils.log.CallbackFilter", "callback": is_our_mistake}
    },
    "formatters": {"chosen": {"()": "reach_project.logs.formatter", "style": REACH_LOG_FORMAT}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "chosen"}},
    "root": {"handlers": ["stderr"], "level": REACH_LOG_LEVEL},
    "loggers": {
        **{name: {"level": "WARNING"} for name in ("asyncio", "axes", "celery", "kombu", "uvicorn", "aiohttp")},
        **{name: {"level": "CRITICAL"} for name in ("opentelemetry", "urllib3")},  # see `reach_project.otlp`
        "channels_redis": {"level": "CRITICAL"},  # a broker that is away is told by readiness, not each second
        "django.request": {"filters": ["mistakes of ours"]},
        "django.security.DisallowedHost": {"level": "CRITICAL"},  # likewise
    },
}
logging.captureWarnings(True)  # they too are lines of the log

# --- Metrics and traces ----------------------------------------------------------------------------------------------

REACH_METRICS_PUBLIC = limit("REACH_METRICS_PUBLIC", False, "true|false", "`/metrics` without a key that may observe")
REACH_METRICS_LABEL_VALUES = limit(
    "REACH_METRICS_LABEL_VALUES", 100, "names", "services or capabilities told apart by one metric; others are `other`"
)
OTEL_EXPORTER_OTLP_ENDPOINT = env.str("OTEL_EXPORTER_OTLP_ENDPOINT", default="")
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT = env.str("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", default="")
REACH_TRACES_WANTED = bool(OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT)
CONFIGURATION += [
    Limit("OTEL_EXPORTER_OTLP_ENDPOINT", "", "url", "OTLP/HTTP collector that gets spans, `http://collector:4318`"),
    Limit("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "", "url", "the same with its whole path, when only traces go there"),
]
REACH_TRACE_SAMPLE = limit(
    "REACH_TRACE_SAMPLE", 1.0, "0 to 1", "share of the traces recorded of which no caller has decided by `traceparent`"
)

# --- Bodies ----------------------------------------------------------------------------------------------------------

REACH_MAX_BODY_BYTES = limit("REACH_MAX_BODY_BYTES", 1_048_576, "bytes", "one request must not fill a process")
REACH_MAX_RESPONSE_BYTES = limit("REACH_MAX_RESPONSE_BYTES", 4_194_304, "bytes", "a node's answer; likewise")
REACH_MAX_JSON_DEPTH = limit("REACH_MAX_JSON_DEPTH", 64, "levels", "deeper documents are attacks or mistakes")
REACH_MAX_JSON_CONTAINERS = limit(
    "REACH_MAX_JSON_CONTAINERS", 50_000, "arrays and objects", "1 MiB of `[],` would hold 350,000 and keep all waiting"
)
REACH_MAX_CONTEXT_BYTES = limit("REACH_MAX_CONTEXT_BYTES", 16_384, "bytes", "`context` travels along every hop")
REACH_BODY_TIMEOUT_S = limit("REACH_BODY_TIMEOUT_S", 10.0, "s", "a body that trickles in holds a connection")
DATA_UPLOAD_MAX_MEMORY_SIZE = REACH_MAX_BODY_BYTES

# --- Calls -----------------------------------------------------------------------------------------------------------

REACH_DEFAULT_ROUTE = limit("REACH_DEFAULT_ROUTE", "auto", "auto|deny", "what happens to a call that no route matches")
REACH_TIER_LIGHT_S = limit("REACH_TIER_LIGHT_S", 10.0, "s", "default deadline of `light` capabilities")
REACH_TIER_MEDIUM_S = limit("REACH_TIER_MEDIUM_S", 60.0, "s", "default deadline of `medium` capabilities")
REACH_TIER_HEAVY_S = limit("REACH_TIER_HEAVY_S", 600.0, "s", "default deadline of `heavy` capabilities")
REACH_MAX_TIMEOUT_MS = limit("REACH_MAX_TIMEOUT_MS", 600_000, "ms", "no call may ask for more")
REACH_MAX_HOPS = limit("REACH_MAX_HOPS", 16, "calls", "a longer chain of parents is a loop in disguise")
REACH_MAX_RETRIES = limit("REACH_MAX_RETRIES", 2, "retries", "five made the article's retry storm")
REACH_RETRY_BASE_DELAY_MS = limit("REACH_RETRY_BASE_DELAY_MS", 100, "ms", "doubled each time, times 0.5 to 1.5")
REACH_RETRY_TOTAL_MS = limit("REACH_RETRY_TOTAL_MS", 30_000, "ms", "no attempt starts later after the first forward")
REACH_RETRY_BUDGET_SHARE = limit(
    "REACH_RETRY_BUDGET_SHARE", 0.2, "of 1", "of a service's calls may become retries: more make an outage a storm"
)
REACH_RETRY_BUDGET_FLOOR = limit("REACH_RETRY_BUDGET_FLOOR", 10, "retries", "of a service are allowed in any case")
REACH_RETRY_BUDGET_WINDOW_S = limit("REACH_RETRY_BUDGET_WINDOW_S", 10.0, "s", "calls and retries of so long count")
REACH_IDLE_TIMEOUT_S = limit("REACH_IDLE_TIMEOUT_S", 30.0, "s", "silence after a first `running` ends an attempt")
REACH_STREAM_LINES_PER_S = limit(
    "REACH_STREAM_LINES_PER_S", 1000, "lines", "of a node's NDJSON answer; faster ones are held back, others go first"
)
REACH_STREAM_RECEIPTS_PER_S = limit(
    "REACH_STREAM_RECEIPTS_PER_S", 10, "receipts", "kept of such an answer; more would only fill the call's timeline"
)
REACH_CONNECT_TIMEOUT_S = limit("REACH_CONNECT_TIMEOUT_S", 2.0, "s", "a node that takes longer is not reachable")
REACH_NODE_KEEPALIVE_S = limit(
    "REACH_NODE_KEEPALIVE_S", 1.5, "s", "idle connections to nodes; below the 2 s after which common servers close them"
)
REACH_MAX_IN_FLIGHT = limit(
    "REACH_MAX_IN_FLIGHT", 4000, "calls", "of one process; each has two sockets and 30 KB: 8,000 open files, 120 MB"
)
REACH_MAX_WAITING_ROWS = limit(
    "REACH_MAX_WAITING_ROWS",
    4096,
    "rows",
    "that wait for a commit: sixteen full ones; new calls would only wait too",
)
REACH_MAX_BYTES_IN_FLIGHT = limit(
    "REACH_MAX_BYTES_IN_FLIGHT",
    128 * 1024 * 1024,
    "bytes",
    "of the bodies of one process's calls, and of those still coming in; each takes some five times that in memory",
)
REACH_MAX_MIRRORED = limit(
    "REACH_MAX_MIRRORED", 100, "copies", "in flight from one process; more are left out, for they would take its time"
)
REACH_ENGINE_MAX_IN_FLIGHT = limit(
    "REACH_ENGINE_MAX_IN_FLIGHT",
    2000,
    "calls",
    "asynchronous ones that one worker has at nodes; each has a socket and 30 KB. One capability takes four fifths",
)
REACH_ENGINE_HELD = limit(
    "REACH_ENGINE_HELD",
    1000,
    "calls",
    "asynchronous ones that one worker holds in memory until a node can take them; the rest wait in the database",
)
REACH_ENGINE_HELD_PER_CAPABILITY = limit(
    "REACH_ENGINE_HELD_PER_CAPABILITY", 100, "calls", "of them, so that one without nodes leaves room for the others"
)
REACH_CALLBACKS_AT_ONCE = limit("REACH_CALLBACKS_AT_ONCE", 100, "callbacks", "sent side by side by one worker")
REACH_CALLBACKS_PER_HOST = limit(
    "REACH_CALLBACKS_PER_HOST", 8, "callbacks", "of them: a receiver that hangs leaves room for the others"
)
REACH_CALLBACK_TIMEOUT_S = limit(
    "REACH_CALLBACK_TIMEOUT_S", 5.0, "s", "a receiver that takes longer has not got it; receivers should answer first"
)
REACH_CALLBACK_RETRY_S = limit(
    "REACH_CALLBACK_RETRY_S",
    2.0,
    "s",
    "before the first retry, times 0.5 to 1.5 and doubled each time: with the timeout within 10 s of the first try",
)
REACH_CALLBACK_RETRY_MAX_S = limit("REACH_CALLBACK_RETRY_MAX_S", 3600.0, "s", "between two tries, times 0.5 to 1.5")
REACH_CALLBACK_GIVE_UP_S = limit("REACH_CALLBACK_GIVE_UP_S", 86_400, "s", "a callback is tried for so long")
REACH_CANCEL_TIMEOUT_S = limit("REACH_CANCEL_TIMEOUT_S", 2.0, "s", "a node is told of a cancelled call for so long")
REACH_IDEMPOTENCY_TTL_S = limit("REACH_IDEMPOTENCY_TTL_S", 86_400, "s", "how long an idempotency key is remembered")
REACH_RETRY_AFTER_MS = limit("REACH_RETRY_AFTER_MS", 1000, "ms", "advice on 503 where no route says otherwise")
REACH_INTENT_MIN_SCORE = limit(
    "REACH_INTENT_MIN_SCORE", 0.5, "of 1", "how much of an intent's words a capability must answer to be called by it"
)
REACH_NEAR_LIMIT = limit(
    "REACH_NEAR_LIMIT", 0.8, "of a limit", "so full, and interactive calls and cost_aware routes look elsewhere"
)
REACH_BREAKER_WINDOW_S = limit("REACH_BREAKER_WINDOW_S", 10.0, "s", "breakers judge the attempts of so long")
REACH_BREAKER_ERROR_SHARE = limit("REACH_BREAKER_ERROR_SHARE", 0.5, "of 1", "more errors than this open a breaker")
REACH_BREAKER_MIN_CALLS = limit("REACH_BREAKER_MIN_CALLS", 10, "attempts", "fewer at a service say too little of it")
REACH_BREAKER_NODE_MIN_CALLS = limit("REACH_BREAKER_NODE_MIN_CALLS", 5, "attempts", "likewise of one node")
REACH_BREAKER_OPEN_S = limit("REACH_BREAKER_OPEN_S", 5.0, "s", "nothing is sent for so long, then one attempt")
REACH_BREAKER_TIMEOUT_S = limit(
    "REACH_BREAKER_TIMEOUT_S", 1.0, "s", "a deadline that left a node less says nothing of it, only of its caller"
)
REACH_SHARING_INTERVAL_S = limit(
    "REACH_SHARING_INTERVAL_S", 0.2, "s", "how often processes tell each other of attempts, rates and retries by Redis"
)
REACH_MAX_CANDIDATES_SHOWN = limit("REACH_MAX_CANDIDATES_SHOWN", 32, "nodes", "in `routed`; counts beyond")
REACH_LATENCY_DECAY_S = limit("REACH_LATENCY_DECAY_S", 10.0, "s", "how fast a node's peak latency is forgotten")

# --- Journal, leases, sweeps -----------------------------------------------------------------------------------------

REACH_DURABILITY = choice(
    "REACH_DURABILITY",
    "strict",
    ("strict", "relaxed"),
    "`relaxed` does not wait for the disk: a crash of PostgreSQL may lose the last 0.6 s (see performance.md)",
)
REACH_FLUSH_MAX_ROWS = limit("REACH_FLUSH_MAX_ROWS", 256, "calls", "one group commit; more wait for the next")
REACH_DATABASE_RETRY_S = limit("REACH_DATABASE_RETRY_S", 0.5, "s", "pause between attempts to reach a lost database")
REACH_DATABASE_TIMEOUT_S = limit("REACH_DATABASE_TIMEOUT_S", 5.0, "s", "a database that takes longer counts as away")
REACH_PROCESS_LEASE_S = limit("REACH_PROCESS_LEASE_S", 5.0, "s", "a silent dispatcher's calls are taken over after it")
REACH_SWEEP_INTERVAL_S = limit("REACH_SWEEP_INTERVAL_S", 1.0, "s", "how often due and orphaned calls are looked for")
REACH_SWEEP_BATCH = limit("REACH_SWEEP_BATCH", 200, "calls", "taken by one sweep")
REACH_WAIT_POLL_S = limit(
    "REACH_WAIT_POLL_S", 0.5, "s", "one look at all calls that are waited for here: the net behind notifications"
)
REACH_WAIT_MAX_S = limit("REACH_WAIT_MAX_S", 60.0, "s", "longest `wait`; ask again after it")
REACH_EVENTS_KEEPALIVE_S = limit(
    "REACH_EVENTS_KEEPALIVE_S", 20.0, "s", "a silent event stream says so much; common proxies cut after 30 to 60 s"
)
REACH_EVENTS_MAX_S = limit(
    "REACH_EVENTS_MAX_S",
    900.0,
    "s",
    "longest event stream, above any call's deadline; its client comes back",
)
REACH_EVENTS_RETRY_MS = limit("REACH_EVENTS_RETRY_MS", 1000, "ms", "a client whose stream broke comes back after it")
REACH_EVENTS_STALL_S = limit(
    "REACH_EVENTS_STALL_S", 30.0, "s", "a client that takes nothing of its event stream for so long is cut off"
)
REACH_MAX_WAITING_CLIENTS = limit(
    "REACH_MAX_WAITING_CLIENTS", 5000, "clients", "event streams and `wait`s open at one process; each costs it 30 KB"
)
REACH_MAX_WAITING_CLIENTS_PER_KEY = limit(
    "REACH_MAX_WAITING_CLIENTS_PER_KEY", 2500, "clients", "likewise of one key: half, so that no one key takes all"
)
REACH_SNAPSHOT_POLL_S = limit("REACH_SNAPSHOT_POLL_S", 1.0, "s", "net behind the notification of table changes")
REACH_DRAIN_S = limit("REACH_DRAIN_S", 25.0, "s", "calls at work may finish for so long after SIGTERM")
REACH_STOP_DELAY_S = limit(
    "REACH_STOP_DELAY_S", 0.0, "s", "calls are still taken for so long after SIGTERM, while a load balancer looks away"
)
REACH_START_PATIENCE_S = limit(
    "REACH_START_PATIENCE_S", 60.0, "s", "a start waits so long for a database that is away or not prepared yet"
)
REACH_PARTITION_HOURS = limit("REACH_PARTITION_HOURS", 24, "h", "calls and receipts are partitioned by this span")
REACH_PARTITIONS_AHEAD = limit("REACH_PARTITIONS_AHEAD", 7, "partitions", "made in advance")

# --- Advisories ------------------------------------------------------------------------------------------------------

REACH_ADVISE_INTERVAL_S = limit("REACH_ADVISE_INTERVAL_S", 300.0, "s", "how often traffic is looked at for advisories")
REACH_ADVISE_SAMPLE = limit(
    "REACH_ADVISE_SAMPLE",
    1000,
    "calls",
    "of the last day, read with their payload each time; tenfold are counted",
)
REACH_ADVISE_TABLE_CHANGES = limit(
    "REACH_ADVISE_TABLE_CHANGES", 10, "a day", "more published route changes than that raise an advisory"
)

# --- Review of route changes ------------------------------------------------------------------------------------------

REACH_APPROVALS = limit("REACH_APPROVALS", 1, "people", "besides the author; a change needs at least one")
REACH_APPROVALS_WHEN_LARGE = limit(
    "REACH_APPROVALS_WHEN_LARGE",
    1,
    "people",
    "where the impact is large; a team of two must be able to publish, from three people on 2 is better",
)
REACH_IMPACT_LARGE_SHARE = limit(
    "REACH_IMPACT_LARGE_SHARE", 0.5, "0 to 1", "so much of the sampled calls moves: large; so is a capability lost"
)
REACH_IMPACT_LARGE_CALLS = limit(
    "REACH_IMPACT_LARGE_CALLS", 100, "calls", "of the sample at least: a share of a few calls says nothing"
)
REACH_IMPACT_SAMPLE = limit("REACH_IMPACT_SAMPLE", 20_000, "calls", "of the last day, evenly chosen, that are replayed")
REACH_IMPACT_COUNTED = limit(
    "REACH_IMPACT_COUNTED", 5_000_000, "calls", "of the last day to choose from; bounds the work of the database"
)
REACH_IMPACT_MAX_REQUEST_BYTES = limit(
    "REACH_IMPACT_MAX_REQUEST_BYTES", 65_536, "bytes", "larger calls are left out, and counted: they are held in memory"
)
REACH_IMPACT_MAX_AGE_S = limit(
    "REACH_IMPACT_MAX_AGE_S", 3600.0, "s", "an older impact is made anew before anybody approves: traffic changes"
)
REACH_REVIEW_INTERVAL_S = limit(
    "REACH_REVIEW_INTERVAL_S", 1.0, "s", "how often is looked for impacts to be analysed and watches that are due"
)
REACH_WATCH_S = limit("REACH_WATCH_S", 300.0, "s", "the calls that a published change moves are watched for so long")
REACH_WATCH_INTERVAL_S = limit(
    "REACH_WATCH_INTERVAL_S", 2.0, "s", "between two looks; the first may be right: a revert within 60 s is promised"
)
REACH_WATCH_BASELINE_S = limit(
    "REACH_WATCH_BASELINE_S", 900.0, "s", "before the publication, that the calls after it are held against"
)
REACH_WATCH_SAMPLE = limit(
    "REACH_WATCH_SAMPLE", 20_000, "calls", "the newest ended ones, read at each look; bounds the work of the database"
)
REACH_WATCH_MIN_CALLS = limit(
    "REACH_WATCH_MIN_CALLS", 20, "calls", "fewer say nothing; a quarter of one service, whose breaker lets few through"
)
REACH_WATCH_WORSE_BY = limit(
    "REACH_WATCH_WORSE_BY", 0.05, "0 to 1", "so much more of the calls fails or is retried, for certain: worse"
)
REACH_WATCH_SLOWER_BY = limit(
    "REACH_WATCH_SLOWER_BY", 2.0, "times", "the median of the calls takes so many times as long: worse"
)
REACH_WATCH_SLOWER_MS = limit(
    "REACH_WATCH_SLOWER_MS", 200.0, "ms", "and at least so much longer: twice nothing is nothing"
)

# --- Live pages ------------------------------------------------------------------------------------------------------

CHANNEL_LAYERS: dict[str, Any] = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {
            "hosts": [{"address": REDIS_URL, "socket_connect_timeout": 5, "health_check_interval": 5}],
            "prefix": "reach",
        },
    }
    if REDIS_URL
    else {"BACKEND": "channels.layers.InMemoryChannelLayer", "CONFIG": {"group_expiry": 10 * 365 * 86_400}}
}
REACH_LIVE_INTERVAL_S = limit("REACH_LIVE_INTERVAL_S", 0.2, "s", "live pages are told of calls so often, at most")
REACH_LIVE_CALLS = limit(
    "REACH_LIVE_CALLS", 25, "calls", "in one message to live pages, which show twenty at a time; others are a number"
)
REACH_LIVE_BEAT_S = limit(
    "REACH_LIVE_BEAT_S",
    5.0,
    "s",
    "live pages hear so often that the line stands; three times silent, and they call anew",
)
REACH_MAX_WATCHERS = limit("REACH_MAX_WATCHERS", 200, "sockets", "live pages of one process; more are refused")
REACH_WATCHER_PATIENCE_S = limit(
    "REACH_WATCHER_PATIENCE_S", 5.0, "s", "a browser that does not read for so long is cut off"
)

# --- Overview --------------------------------------------------------------------------------------------------------

REACH_OVERVIEW_SHARE = limit(
    "REACH_OVERVIEW_SHARE", 0.8, "0 to 1", "a service that takes more of the calls is pointed out: it holds up them all"
)
REACH_OVERVIEW_FAILED_SHARE = limit(
    "REACH_OVERVIEW_FAILED_SHARE",
    0.05,
    "0 to 1",
    "so many failed calls of the last 15 minutes are pointed out; four times as many mean that something is wrong",
)
REACH_OVERVIEW_LEAST_CALLS = limit(
    "REACH_OVERVIEW_LEAST_CALLS", 20, "calls", "of fewer, shares say nothing and nobody is alarmed"
)

# --- Statistics ------------------------------------------------------------------------------------------------------

REACH_STATISTICS_INTERVAL_S = limit(
    "REACH_STATISTICS_INTERVAL_S", 15.0, "s", "how often calls are counted; what is newer is counted by who asks"
)

# --- Failed calls ----------------------------------------------------------------------------------------------------

REACH_REDISPATCH_MOST = limit(
    "REACH_REDISPATCH_MOST", 1000, "calls", "failed ones that one order does again; more are a storm of their own"
)
REACH_REDISPATCH_PER_S = limit(
    "REACH_REDISPATCH_PER_S", 20, "calls", "of orders, done again each second: what has just recovered is not run over"
)
REACH_EXPORT_ROWS = limit("REACH_EXPORT_ROWS", 100_000, "rows", "in one CSV file of the audit log; the newest ones")

# --- Retention -------------------------------------------------------------------------------------------------------

REACH_RETENTION_DAYS = limit(
    "REACH_RETENTION_DAYS", 30, "days", "older calls, receipts, refusal counts and rows of removed nodes are deleted"
)
REACH_MINUTE_STATISTICS_DAYS = limit(
    "REACH_MINUTE_STATISTICS_DAYS", 3, "days", "calls counted by the minute; older spans are told by the hour"
)
REACH_AUDIT_DAYS = limit("REACH_AUDIT_DAYS", 400, "days", "the audit log; a year and what a yearly review needs on top")
REACH_EXPIRED_NODE_DAYS = limit(
    "REACH_EXPIRED_NODE_DAYS", 7, "days", "a node silent for so long leaves the lists; operators' choices stay"
)
REACH_ENDED_KEY_DAYS = limit("REACH_ENDED_KEY_DAYS", 90, "days", "keys revoked or run out are shown for so long")
REACH_GONE_PROCESS_HOURS = limit(
    "REACH_GONE_PROCESS_HOURS", 1, "h", "leases of processes that are gone; their calls are taken over at once"
)

# --- Registry --------------------------------------------------------------------------------------------------------

REACH_PROBE_TIMEOUT_S = limit("REACH_PROBE_TIMEOUT_S", 2.0, "s", "a zero-cost task that takes longer is not ready")
REACH_PROBE_INTERVAL_S = limit("REACH_PROBE_INTERVAL_S", 10.0, "s", "how often a ready node is probed, at most")
REACH_PROBE_OUT_INTERVAL_S = limit(
    "REACH_PROBE_OUT_INTERVAL_S", 2.0, "s", "how often a node that is out, or failed its last probe, is probed"
)
REACH_PROBE_FAILURES_OUT = limit(
    "REACH_PROBE_FAILURES_OUT", 2, "probes", "failures in a row that take a ready node out; one success brings it back"
)
REACH_PROBE_SHARD_NODES = limit("REACH_PROBE_SHARD_NODES", 250, "nodes", "probed side by side by one task")
REACH_KNOCK_INTERVAL_S = limit(
    "REACH_KNOCK_INTERVAL_S", 1.0, "s", "how often every ready node is connected to: a dead one is noticed at once"
)
REACH_KNOCK_TIMEOUT_S = limit("REACH_KNOCK_TIMEOUT_S", 1.0, "s", "a node that takes no connection so long is suspect")
REACH_SUSPICION_S = limit(
    "REACH_SUSPICION_S", 5.0, "s", "a dispatcher whose connection to a node failed takes it last for so long"
)
REACH_MAX_SCHEMA_BYTES = limit("REACH_MAX_SCHEMA_BYTES", 65_536, "bytes", "one declared JSON Schema")
REACH_MAX_SCHEMA_DEPTH = limit("REACH_MAX_SCHEMA_DEPTH", 32, "levels", "one declared JSON Schema")
REACH_MAX_CAPABILITIES = limit("REACH_MAX_CAPABILITIES", 200, "capabilities", "of one node")
REACH_MAX_ROUTES = limit("REACH_MAX_ROUTES", 5000, "routes", "of one table")
REACH_ALLOWED_ADDRESSES = limit(
    "REACH_ALLOWED_ADDRESSES", "", "comma list", "CIDRs and host names nodes may have; empty = all but link-local"
)
