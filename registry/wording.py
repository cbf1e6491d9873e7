"""How pages say what the code says in one word or one sentence, in the reader's language. API texts stay English.

Sentences that are stored (why a node is not ready, why it was no candidate) are English, too: `said` puts those it
knows into the reader's language. An app above adds its own with `SENTENCES.extend`.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from django.utils.functional import Promise
from django.utils.translation import gettext, gettext_noop, pgettext_lazy
from django.utils.translation import gettext_lazy as _

NODE_STATUS: Mapping[str, Promise] = {
    "starting": _("Starting"),
    "ready": _("Ready"),
    "not_ready": _("Not ready"),
    "suspect": _("Suspect"),
    "ejected": _("Ejected"),
    "draining": _("Draining"),
    "disabled": _("Disabled"),
    "expired": _("Expired"),
    "removed": _("Removed"),
}
ADMIN_STATE: Mapping[str, Promise] = {
    "enabled": _("Enabled"),
    "draining": _("Draining"),
    "disabled": _("Disabled"),
}
LEVEL: Mapping[str, Promise] = {"low": _("Low"), "medium": _("Medium"), "high": _("High")}
TIER: Mapping[str, Promise] = {
    "light": pgettext_lazy("timeout tier", "Light"),
    "medium": pgettext_lazy("timeout tier", "Medium"),
    "heavy": pgettext_lazy("timeout tier", "Heavy"),
}
SCOPE: Mapping[str, Promise] = {
    "register": _("Register: declare the nodes of its own service, and send heartbeats"),
    "dispatch": _("Dispatch: hand out work, and follow its own calls"),
    "observe": _("Observe: read the registry, all calls and traces"),
    "operate": _("Operate: everything an operator may do"),
}
AUDIT_ACTION: Mapping[str, Promise] = {
    "register": _("registered a node"),
    "remove": _("removed a node"),
    "change": _("overruled a node"),
    "probe": _("probed a node"),
    "create key": _("made a key"),
    "revoke key": _("revoked a key"),
    "create user": _("created a user"),
    "cancel call": _("cancelled a call"),
    "redispatch call": _("did a call again"),
    "try call": _("made a call by hand"),
    "redispatch in bulk": _("ordered failed calls to be done again"),
    "stop redispatch": _("stopped an order to do calls again"),
    "export audit log": _("exported the audit log"),
    "advisory.acknowledge": _("acknowledged an advisory"),
    "advisory.take_back": _("took an acknowledgement back"),
    "add": _("added"),
    "edit": _("edited"),
    "delete": _("deleted"),
    "route_file.read": _("read the route file"),
    "route_change.propose": _("proposed a route change"),
    "route_change.edit": _("edited a route change"),
    "route_change.submit": _("submitted a route change"),
    "route_change.approve": _("approved a route change"),
    "route_change.reject": _("rejected a route change"),
    "route_change.withdraw": _("withdrew a route change"),
    "route_change.publish": _("published a route change"),
    "route_change.rebase": _("brought a route change onto the live table"),
    "route_change.break_glass": _("published a route change without approval"),
    "route_change.restore": _("took a route change back by itself"),
    "route_change.comment": _("commented on a route change"),
    "route_change.alert": _("saw the calls of a route change fare worse"),
}

SENTENCES: list[str] = [
    gettext_noop("registered, not yet proven ready"),
    gettext_noop("its heartbeat is back, not yet proven ready"),
    gettext_noop("disabled by an operator"),
    gettext_noop("takes no new calls; running ones may finish"),
    gettext_noop("lease ran out: no heartbeat in time"),
    gettext_noop("connects, does not answer"),
    gettext_noop("connection refused"),
    gettext_noop("lives, but readiness hangs"),
    gettext_noop("says it is not ready"),
    gettext_noop("says it is not ready: %(reason)s"),
    gettext_noop('answers 200 without {"ready": true}'),
    gettext_noop("answers %(status)s"),
    gettext_noop("its name does not resolve"),
    gettext_noop("TLS fails: %(reason)s"),
    gettext_noop("unreachable: %(reason)s"),
    gettext_noop("no connection in time"),
    gettext_noop("no connection: %(reason)s"),
    gettext_noop("the connection is reset"),
    gettext_noop("the connection broke after the envelope was sent (%(how)s)"),
    gettext_noop("its TLS certificate is not valid: %(reason)s"),
    gettext_noop("something before it answered %(status)s"),
    gettext_noop("not connected: %(reason)s"),
    gettext_noop("%(node)s is leaving; it can be changed when it has registered again"),
    gettext_noop("there is no node %(node)s"),
    gettext_noop("its breaker is open: %(errors)s of %(attempts)s attempts failed"),
    gettext_noop("its breaker is open: another try has failed"),
    gettext_noop("first start"),
    gettext_noop("a key cannot give away what it does not have: %(scopes)s"),
]


def label(labels: Mapping[str, Promise], word: str) -> str:
    """The label of a word; a word that nobody has labelled stands for itself."""
    return str(labels.get(word, word))


NESTED = "reason"
"""A gap of this name holds another sentence, which is put into the reader's language, too."""
COUNTED = "counted"
"""A gap of this name holds such sentences with a number before each: "2 not ready, 1 draining"."""
GAPS = {"node": r"[a-z0-9][a-z0-9_.-]*/[a-z0-9][a-z0-9_.-]*", "http_status": r"\d{3}"}
"""What may stand in gaps of these names; in others anything may."""


def said(sentence: str) -> str:
    """A stored sentence of ours in the reader's language, with those that it holds; any other text as it is."""
    template, values = recognised(sentence)
    if template is None:
        return sentence
    return (
        gettext(template) % {name: filled(name, text) for name, text in values.items()} if values else gettext(template)
    )


def filled(gap: str, text: str) -> str:
    """What stands in a gap, in the reader's language."""
    if gap == NESTED:
        return said(text)
    if gap == COUNTED:
        return ", ".join(f"{one[1]} × {said(one[2])}" for one in re.finditer(r"(\d+) (.+?)(?=, \d+ |$)", text))
    return text


@lru_cache(maxsize=4096)
def recognised(sentence: str, among: tuple[str, ...] = ()) -> tuple[str | None, Mapping[str, str]]:
    """The sentence's template, if it is one of ours (or `among` these), and what stands in its gaps."""
    for template in among or SENTENCES:
        if found := pattern_of(template).fullmatch(sentence):
            return template, found.groupdict()
    return None, {}


@lru_cache(maxsize=1024)
def pattern_of(template: str) -> re.Pattern[str]:
    """A regular expression that matches what `template % values` can make."""
    parts = re.split(r"%\((\w+)\)s", template)
    return re.compile(
        "".join(
            re.escape(p.replace("%%", "%")) if n % 2 == 0 else f"(?P<{p}>{GAPS.get(p, '.+')})"
            for n, p in enumerate(parts)
        ),
        re.DOTALL,
    )
